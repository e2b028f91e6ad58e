"""The HTTP connection under a streamed answer: pieces of a body go straight to the transport.

uvicorn's own protocol, which in addition offers each request its connection as an ASGI extension.
Under another server there is none, and a stream takes the way of every other answer.
"""

from asyncio import BaseTransport, Transport
from typing import Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_EXTENSION = "headrace.connection"


class Connection(Protocol):
    """Takes the middle of an answer: after its head, before its last piece."""

    def write(self, body: bytes) -> bool:
        """Write a piece that is not empty; whether there is room for another one at once."""
        ...

    async def drain(self) -> None:
        """Wait for that room."""
        ...


def connection_of(scope: Scope) -> Connection | None:
    extensions = scope.get("extensions") or {}
    return cast("Connection | None", extensions.get(_EXTENSION))


class StreamingProtocol(HttpToolsProtocol):
    """Hands out its connection, and tells every request that waits on it when it is lost."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._unanswered: list[RequestResponseCycle] = []

    def on_headers_complete(self) -> None:
        earlier = self.cycle
        super().on_headers_complete()
        if self.cycle is not earlier:
            self._offer_connection(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the newest request alone, which may still queue behind the one that runs.
        for cycle in self._unanswered:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def _offer_connection(self, cycle: RequestResponseCycle) -> None:
        scope = cast("Scope", cycle.scope)
        scope["extensions"] = {_EXTENSION: _Direct(cycle)}
        self._unanswered = [each for each in self._unanswered if not each.response_complete]
        self._unanswered.append(cycle)


class _Direct:
    """Frames a piece as the cycle's own `send` does, in one call."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def write(self, body: bytes) -> bool:
        assert self._cycle.chunked_encoding, "the head of a stream is out and names no length"
        if not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self._flow.write_paused

    async def drain(self) -> None:
        await self._flow.drain()
