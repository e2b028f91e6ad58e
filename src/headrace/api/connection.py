"""The HTTP connection under a request: what came and what goes without a turn of the event loop.

uvicorn's own protocol, which in addition offers each request its connection as an ASGI extension,
and bounds what comes before a request can be seen.
Under another server there is none, and a request takes the way of every other ASGI app.
"""

from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from headrace.api.errors import HeadTooLargeError, MalformedRequestError
from headrace.api.refusal import refusal
from headrace.errors import HeadraceError

MAX_HEAD_BYTES = 64 << 10  # and what one read brings beyond
HEAD_TIMEOUT = 30.0  # seconds for a head to arrive, from when the connection could have brought one
_EXTENSION = "headrace.connection"
_OK = 200


class Connection(Protocol):
    """Gives a body that is there, tells of its end, takes a streamed answer but its last piece."""

    def take_body(self) -> bytes | None:
        """Take the request's body; None while it is not whole, `receive` waits for it then."""
        ...

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        """Call this, and no earlier one, when the client has left; now if it has."""
        ...

    def start(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write the head of a stream, status 200, and a first piece; returns as `write`."""
        ...

    def write(self, body: bytes) -> bool:
        """Write a piece that is not empty; whether there is room for another one at once."""
        ...

    async def drain(self) -> None:
        """Wait for that room."""
        ...


def connection_of(scope: Scope) -> Connection | None:
    extensions = scope.get("extensions") or {}
    return cast("Connection | None", extensions.get(_EXTENSION))


def leave_connection(scope: Scope) -> None:
    """End the cycle of references from the scope to itself, which would wait for the collector."""
    extensions = scope.get("extensions") or {}
    extensions.pop(_EXTENSION, None)


class StreamingProtocol(HttpToolsProtocol):
    """Hands out its connection, and tells every request that waits on it when it is lost.

    A head has bounds, in bytes and in time, as a body has.
    """

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._unanswered: list[_Direct] = []
        self._is_in_head = False
        self._num_head_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            # The read that a head begins in may hold the body before it.
            self._num_head_bytes += len(data) if was_in_head else 0
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(
                    HeadTooLargeError(f"The request's head is over {MAX_HEAD_BYTES} bytes.")
                )
                return
        if self._is_in_head or not self._is_answering:
            self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """For uvicorn, which has found no HTTP in what came."""
        self._refuse(MalformedRequestError(msg))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._leave_head()
        earlier = self.cycle
        super().on_headers_complete()
        if self.cycle is not earlier:
            self._offer_connection(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the newest request alone, which may still queue behind the one that runs.
        for direct in self._unanswered:
            direct.lose()
        self._leave_head()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._end_head)

    def _leave_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head(self) -> None:
        self._head_timer = None
        if self._is_answering:
            self._watch_head()
        else:
            self.transport.close()

    def _refuse(self, error: HeadraceError) -> None:
        self._leave_head()
        if not self._is_answering:  # else it would stand amid the answer
            self.transport.write(refusal(error, self.client))
        self.transport.close()

    def _offer_connection(self, cycle: RequestResponseCycle) -> None:
        direct = _Direct(cycle)
        cast("Scope", cycle.scope)["extensions"] = {_EXTENSION: direct}
        self._unanswered = [each for each in self._unanswered if not each.is_answered]
        self._unanswered.append(direct)


class _Direct:
    """Does in one call what the cycle's own `receive` and `send` do."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._when_lost: Callable[[], None] | None = None

    @property
    def is_answered(self) -> bool:
        return self._cycle.response_complete

    def take_body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        self._flow.resume_reading()  # a body of some size has paused it
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        self._when_lost = callback
        if callback is not None and self._cycle.disconnected:
            callback()

    def lose(self) -> None:
        cycle = self._cycle
        cycle.disconnected = not cycle.response_complete
        cycle.message_event.set()
        if cycle.disconnected and self._when_lost is not None:
            self._when_lost()

    def start(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        cycle = self._cycle
        assert not cycle.response_started
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\r") == head.count(b"\n") == len(lines):
            raise ValueError("a header of a stream has a line break in it")
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        return self._put(
            b"%b%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n"
            % (STATUS_LINE[_OK], head, len(body), body)
        )

    def write(self, body: bytes) -> bool:
        assert self._cycle.chunked_encoding, "the head of a stream is out and names no length"
        return self._put(b"%x\r\n%b\r\n" % (len(body), body))

    async def drain(self) -> None:
        await self._flow.drain()

    def _put(self, framed: bytes) -> bool:
        if not self._cycle.disconnected:
            self._write(framed)
        return not self._flow.write_paused
