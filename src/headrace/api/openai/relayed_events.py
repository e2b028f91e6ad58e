"""The events of a stream that is passed on: what of them the client sees, and whether they end.

Fed with pieces of whole events. Nearly all go by after a look at their bytes; only such as tell of
an end or of tokens are decoded. A key is not to be mistaken: within a text its quotes have
backslashes.
"""

import re

import msgspec

from headrace.api.openai.keeping import Kept
from headrace.api.openai.relayed_whole import WholeBody, usage_of
from headrace.generation import Usage
from headrace.routing.upstream.errors import UpstreamBrokenError

_NO_USAGE = b',"usage":null'
_TOKEN_IDS = re.compile(rb',"token_ids":(?:\[[\d,]*\]|null)')
_TOKEN_IDS_WITH_BLANKS = re.compile(rb',\s*"token_ids"\s*:\s*(?:\[[\d,\s]*\]|null)')
_EVENT_END = re.compile(rb"(?<=\n\n)|(?<=\n\r\n)")
_DONE = re.compile(rb"data: ?\[DONE\]\s*")

_decode = msgspec.json.Decoder(WholeBody).decode


class RelayedEvents:
    """`hides_usage`, `hides_token_ids`: the client did not ask for what the upstream was asked."""

    def __init__(
        self, kept: Kept, *, num_choices: int, hides_usage: bool, hides_token_ids: bool
    ) -> None:
        self._num_choices = num_choices
        self._finished: set[int] = set()
        self._hides_usage = hides_usage
        self._hides_token_ids = hides_token_ids
        self._kept = kept
        self._is_done = False
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.last = b""
        """What the client gets at the end: the last event and what came with it."""

    def take(self, piece: bytes) -> bytes:
        """What the client gets of a piece now."""
        self._kept.add(piece)
        if self._hides_token_ids:
            piece = _without_token_ids(piece)
        if self._hides_usage and _NO_USAGE in piece:
            piece = piece.replace(_NO_USAGE, b"")
        if _goes_on(piece):
            return piece
        shown = b"".join(
            [event for event in _events(piece) if _goes_on(event) or self._shows(event)]
        )
        if not self._is_done:
            return shown
        self.last += shown
        return b""

    def check_end(self) -> None:
        """Raise unless they were those of a whole answer."""
        if not self._is_done or len(self._finished) < self._num_choices:
            raise UpstreamBrokenError("The upstream's answer ended before it was whole.")

    @property
    def kept(self) -> bytes | None:
        """All that came; None where it was not kept, or the client does not have it."""
        return None if self._is_done else self._kept.events

    def _finish(self, index: int) -> None:
        if 0 <= index < self._num_choices:  # others end nothing that was asked for
            self._finished.add(index)

    def _shows(self, event: bytes) -> bool:
        if _DONE.fullmatch(event):
            self._is_done = True
            return True
        body = _read(event)
        if body is None:
            return True
        for choice in body.choices:
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self._finish(choice.index)
        if body.usage is None:
            return True
        self.usage = usage_of(body.usage)
        return bool(body.choices) or not self._hides_usage


def _without_token_ids(piece: bytes) -> bytes:
    piece = _TOKEN_IDS.sub(b"", piece)
    return _TOKEN_IDS_WITH_BLANKS.sub(b"", piece) if b'"token_ids"' in piece else piece


def _events(piece: bytes) -> list[bytes]:
    """Each with its end."""
    if b"\r" in piece:
        return _EVENT_END.split(piece)
    *events, rest = piece.split(b"\n\n")
    return [*(event + b"\n\n" for event in events), rest]


def _goes_on(piece: bytes) -> bool:
    """Whether each of its events has choices, none of which ends."""
    return (
        piece.count(b"data: ")
        == piece.count(b'"choices":[{')
        == piece.count(b'"finish_reason":null')
        == piece.count(b'"finish_reason"')
    )


def _read(event: bytes) -> WholeBody | None:
    """None of what is no chunk of an answer, and is not for us to judge."""
    data = b"".join(
        line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:")
    )
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return None
