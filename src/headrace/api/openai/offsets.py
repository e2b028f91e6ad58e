"""Where each token begins in the text that a completion shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from encodings.utf_8 import IncrementalDecoder


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a token adds to the text, if it is read in one of the ways that it can be."""

    begin: int  # in `text`, the character that holds the token's first byte
    text: str
    incomplete: bytes


class TextOffsets:
    """Follows one choice's tokens and text; in whatever pieces they come, the offsets are the same.

    Characters are counted by the decoder that also makes the text, a broken one as U+FFFD.
    """

    def __init__(self) -> None:
        self._text = ""  # what has been shown of tokens still to come
        self._at = 0
        self._offset = 0
        self._incomplete = b""

    def extend(self, text: str, tokens: Sequence[bytes]) -> list[int]:
        """The offsets of the next tokens; text may run ahead of its tokens, not behind."""
        self._text = self._text[self._at :] + text
        self._at = 0
        return [self._next(token) for token in tokens]

    def _next(self, token: bytes) -> int:
        for reading in self._readings(token):
            shown = self._text[self._at : self._at + len(reading.text)]
            # The last token may be cut by a stop string.
            if reading.text.startswith(shown) and bool(shown) == bool(reading.text):
                begin = self._offset + min(reading.begin, len(shown))
                self._at += len(shown)
                self._offset += len(shown)
                self._incomplete = reading.incomplete
                return begin
        return self._offset  # a control token, which shows nothing of itself

    def _readings(self, token: bytes) -> Iterator[_Reading]:
        yield _read(self._incomplete, token)
        if self._offset == 0 and token.startswith(b" "):
            yield _read(self._incomplete, token[1:])  # SentencePiece's first space is silent
        if self._incomplete:
            # An echoed prompt ends whatever character it has begun; the answer begins anew.
            broken = self._incomplete.decode(errors="replace")
            anew = _read(b"", token)
            yield _Reading(len(broken) + anew.begin, broken + anew.text, anew.incomplete)


def _read(incomplete: bytes, token: bytes) -> _Reading:
    decoder = IncrementalDecoder(errors="replace")
    decoder.buffer = incomplete
    first = decoder.decode(token[:1])
    begin = len(first) if decoder.buffer else len(first) - 1
    text = first + decoder.decode(token[1:])
    return _Reading(max(0, begin), text, decoder.buffer)
