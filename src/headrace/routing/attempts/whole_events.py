"""Cuts a stream of server-sent events where an event ends, and tells how the stream ends.

Passes bytes on as they came: nothing is decoded but an event that may tell of an error.
"""

import re
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.events import MAX_EVENT_BYTES, EventParser
from headrace.routing.upstream.refusals import Refusals

_DONE = b"[DONE]"
_DONE_EVENT = re.compile(rb"^data: ?\[DONE\]\r?\n\r?\n", re.MULTILINE)
_ERROR = b'"error"'  # as a key, or a whole value: within a text the quotes have backslashes
_NAME = b"event:"
_ERROR_NAME = b"error"
_ENDS = (b"\n\n", b"\n\r\n")
_END = re.compile(rb"\n\r?\n")


class Told(msgspec.Struct):
    """Of an event or a whole answer, whether it tells of an error; the rest is not looked at."""

    error: Any = None


decode_told = msgspec.json.Decoder(Told).decode


def has_event(whole: bytes) -> bool:
    """Whether there are any among comments; ValueError where one is none of an answer."""
    events = EventParser().feed(whole)
    try:
        for event in events:
            if event.data != _DONE:
                decode_told(event.data)
    except (ValueError, RecursionError):
        raise ValueError("an event of its answer makes no sense") from None
    return bool(events)


class WholeEvents:
    """Feed it the pieces; `is_done` once the upstream has said that its answer is whole.

    An event that tells of an error is not passed on: what is before it is, and then `error` is set.
    Nothing is passed on of what comes after either.
    """

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._rest = bytearray()
        self.is_done = False
        self.error: HeadraceError | None = None

    def feed(self, piece: bytes) -> bytes:
        """The events that end in this piece."""
        if self.is_done or self.error is not None:
            return b""
        whole = self._cut(piece)
        if _DONE in whole:
            whole = self._up_to_done(whole)
        if _ERROR in whole or _NAME in whole:
            whole = self._before_error(whole)
        return whole

    def _cut(self, piece: bytes) -> bytes:
        if not self._rest and piece.endswith(b"\n\n"):
            return piece
        rest, unseen = self._rest, max(0, len(self._rest) - 2)  # an end may be cut itself
        rest += piece
        end = max(at + len(each) if (at := rest.rfind(each, unseen)) >= 0 else 0 for each in _ENDS)
        whole = bytes(rest[:end])
        del rest[:end]
        if len(rest) > MAX_EVENT_BYTES:
            complaint = f"it sent an event of over {MAX_EVENT_BYTES} bytes"
            self.error = UpstreamBrokenError(self._refusals.sentence(complaint))
        return whole

    def _up_to_done(self, whole: bytes) -> bytes:
        if (done := _DONE_EVENT.search(whole)) is None:
            return whole
        self.is_done, self.error = True, None  # what is too large came after it
        return whole[: done.end()]

    def _before_error(self, whole: bytes) -> bytes:
        at = 0
        for end in _END.finditer(whole):
            if (error := self._error_of(whole[at : end.end()])) is not None:
                self.is_done, self.error = False, error
                return whole[:at]
            at = end.end()
        return whole

    def _error_of(self, event: bytes) -> HeadraceError | None:
        try:
            for name, data in EventParser().feed(event):
                if name == _ERROR_NAME or decode_told(data).error is not None:
                    return self._refusals.of_event(data)
        except (ValueError, RecursionError):  # whoever reads it decides what it is
            return None
        return None
