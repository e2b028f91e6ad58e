"""Answers that are passed on as they came, but only once all of them is there."""

import time
from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError
from headrace.routing.attempts.whole_events import Told
from headrace.routing.health.sent import Sent
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.relay import UpstreamRelay
from headrace.routing.upstream.upstream import Upstream

MAX_WHOLE_BYTES = 64 << 20  # of an answer that is not streamed
_EVENT_STREAM = "text/event-stream"


class _Whole(Told):
    choices: list[msgspec.Raw] = msgspec.field(default_factory=list)


_decode = msgspec.json.Decoder(_Whole).decode


async def collect(answer: UpstreamRelay, sent: Sent, upstream: Upstream) -> "RelayedWhole":
    """What was asked for in one piece; a success that tells of an error is none."""
    body = await _read(answer, upstream, lambda: sent.first_byte(time.monotonic()))
    if (error := _error_of(body, upstream)) is not None:
        raise error
    await answer.aclose()  # so that the connection is another's
    sent.end("success", time.monotonic())
    return RelayedWhole(answer.content_type, body)


async def require_events(answer: UpstreamRelay, upstream: Upstream) -> None:
    """Raise what a success says that is no stream of events."""
    if answer.content_type != _EVENT_STREAM:
        body = await _read(answer, upstream, lambda: None)
        complaint = "its answer is no stream of events"
        broken = UpstreamBrokenError(upstream.refusals.sentence(complaint))
        raise _error_of(body, upstream) or broken


async def _read(answer: UpstreamRelay, upstream: Upstream, begins: Callable[[], None]) -> bytes:
    pieces: list[bytes] = []
    size = 0

    def take(piece: bytes) -> bool:
        nonlocal size
        if not pieces:
            begins()
        pieces.append(piece)
        size += len(piece)
        if size > MAX_WHOLE_BYTES:
            raise UpstreamBrokenError(upstream.refusals.sentence("its answer has no end"))
        return True

    while not await answer.forward(take):
        pass
    return b"".join(pieces)


def _error_of(body: bytes, upstream: Upstream) -> HeadraceError | None:
    """What is wrong with a whole answer, in spite of its status."""
    try:
        told = _decode(body)
    except (ValueError, RecursionError):
        return UpstreamBrokenError(upstream.refusals.sentence("its answer makes no sense"))
    if told.error is not None:
        return upstream.refusals.of_event(body)
    if not told.choices:
        return UpstreamBrokenError(upstream.refusals.sentence("its answer has no choices"))
    return None


class RelayedWhole:
    """An answer that is there."""

    has_token_ids = False

    def __init__(self, content_type: str, body: bytes) -> None:
        self.content_type = content_type
        self._body = body

    async def forward(self, take: Callable[[bytes], bool]) -> bool:
        body, self._body = self._body, b""
        if body:
            take(body)
        return True

    async def aclose(self) -> None:
        self._body = b""
