"""Turns token ids into text as they come. Knows bytes, not models.

Each token is a fixed run of bytes in the two kinds of vocabulary that we read, so Python's
incremental UTF-8 decoder gives exactly the text of the whole, in constant time a token. The decode
stream of `tokenizers` decodes a growing run instead and fails on byte sequences that are no text;
see docs/decisions.
"""

import json
from collections.abc import Callable, Container
from encodings.utf_8 import IncrementalDecoder

from tokenizers import Tokenizer

from headrace.errors import ModelFileError

_SPACE = "▁"  # how SentencePiece writes a space
_BYTE_TOKEN_LENGTH = len("<0x00>")


class TokenBytes:
    """The bytes of every token, found when first asked for."""

    def __init__(self, tokenizer: Tokenizer, where: str) -> None:
        self._tokenizer = tokenizer
        state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        steps = {step["type"]: step for step in state.get("decoders", [state]) if "type" in step}
        self._to_bytes = _converter(steps, where)
        self.strips_first_space = "Strip" in steps or (
            "Metaspace" in steps and steps["Metaspace"].get("prepend_scheme") != "never"
        )
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            # Embeddings are often padded with rows that stand for no token.
            known = self._known[token_id] = b"" if token is None else self._to_bytes(token)
        return known

    def text(self, token_id: int) -> str | None:
        """What the token says by itself; None when its bytes begin or end within a character."""
        try:
            return self._texts[token_id]
        except KeyError:
            text = self._texts[token_id] = _whole_characters(self[token_id])
            return text


class Detokenizer:
    """The text of one sequence as it grows; a character comes out when its last byte is in."""

    __slots__ = ("_bytes", "_decoder", "_hidden", "_strip")

    def __init__(self, token_bytes: TokenBytes, hidden: Container[int], *, at_start: bool) -> None:
        """Tokens in `hidden` give no text; `at_start` means that no prompt precedes."""
        self._bytes = token_bytes
        self._hidden = hidden
        self._decoder: IncrementalDecoder | None = None  # only while it holds incomplete bytes
        self._strip = at_start and token_bytes.strips_first_space

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps none."""
        if token_id in self._hidden:
            return ""
        text = self._bytes.text(token_id) if self._decoder is None else None
        if text is None:
            text = self._decode(self._bytes[token_id])
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """What remains at the end: an incomplete character shows as U+FFFD."""
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)

    def _decode(self, data: bytes) -> str:
        decoder = self._decoder or IncrementalDecoder(errors="replace")
        text = decoder.decode(data)
        self._decoder = decoder if decoder.buffer else None
        return text


def _whole_characters(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _converter(steps: dict[str, object], where: str) -> Callable[[str], bytes]:
    if "ByteLevel" in steps:
        return _byte_level
    if "ByteFallback" in steps or "Metaspace" in steps:
        return _sentencepiece
    raise ModelFileError(
        f"{where}: the tokenizer's decoder {sorted(steps)} is not supported; "
        f"supported are ByteLevel and SentencePiece's (ByteFallback, Metaspace)"
    )


def _byte_level(token: str) -> bytes:
    """GPT-2's alphabet, in which every byte is a visible character; added tokens are plain text."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            return token.encode()
    return token.replace(_SPACE, " ").encode()


def _alphabet() -> dict[str, int]:
    """Printable bytes stand for themselves, the others for characters from 256 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _alphabet()
