"""The HTTP connection under a request: what came and what goes without a turn of the event loop.

uvicorn's own protocol, which in addition offers each request its connection as an ASGI extension,
and bounds what comes before a request can be seen.
Under another server there is none, and a request takes the way of every other ASGI app.
"""

from asyncio import BaseTransport, TimerHandle, Transport
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

from headrace.api.direct import Direct
from headrace.api.errors import HeadTooLargeError, MalformedRequestError, PipelineError
from headrace.api.refusal import refusal
from headrace.errors import HeadraceError

MAX_HEAD_BYTES = 64 << 10  # and what one read brings beyond
HEAD_TIMEOUT = 30.0  # seconds for a head to arrive, from when the connection could have brought one
MAX_PIPELINED = 64  # requests that wait behind another one on their connection
_EXTENSION = "headrace.connection"


class Connection(Protocol):
    """Gives a body that is there, tells of its end, takes an answer, whole or in pieces."""

    def take_body(self) -> bytes | None:
        """Take the request's body; None while it is not whole, `receive` waits for it then."""
        ...

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        """Call this, and no earlier one, when the client has left; now if it has."""
        ...

    def answer(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer, status 200, whose length is among its headers."""
        ...

    def start(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write the head of a stream, status 200, and a first piece; returns as `write`."""
        ...

    def write(self, body: bytes) -> bool:
        """Write a piece that is not empty; whether there is room for another one at once."""
        ...

    def end(self, body: bytes) -> None:
        """Write the last piece of a stream, which may be empty."""
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

    A head has bounds, in bytes and in time, as a body has, and so has what waits behind a request.
    """

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._unanswered: deque[Direct] = deque()  # in the order of their answers
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
        """For uvicorn, which has found no HTTP in what came, or was told to look no further."""
        if not self.transport.is_closing():
            self._refuse(MalformedRequestError(msg))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._leave_head()
        if len(self.pipeline) >= MAX_PIPELINED:
            error = PipelineError(f"More than {MAX_PIPELINED} requests wait on this connection.")
            self._refuse(error)
            raise error  # ends the parsing: one read may bring thousands
        earlier = self.cycle
        super().on_headers_complete()
        if self.cycle is not earlier:
            self._offer_connection(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_all()
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
        """The last answer on this connection; what has not begun to be answered is not."""
        self._leave_head()
        said = refusal(error, self.client)
        if not any(direct.has_begun for direct in self._unanswered):  # else it would stand amid it
            self.transport.write(said)
        self._lose_all()
        self.transport.close()

    def _lose_all(self) -> None:
        # uvicorn tells the newest request alone, which may still queue behind the one that runs.
        for direct in self._unanswered:
            direct.lose()

    def _offer_connection(self, cycle: RequestResponseCycle) -> None:
        direct = Direct(cycle)
        cast("Scope", cycle.scope)["extensions"] = {_EXTENSION: direct}
        while self._unanswered and self._unanswered[0].is_answered:
            self._unanswered.popleft()
        self._unanswered.append(direct)
