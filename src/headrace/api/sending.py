"""Sends one answer: past ASGI where the connection can be had, else in ASGI's messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from starlette.types import Send

from headrace.api.connection import Connection
from headrace.api.errors import error_body
from headrace.api.exchange import Exchange, Headers
from headrace.api.serving import VERSION_HEADER
from headrace.errors import HeadraceError

T = TypeVar("T")

Forward = Callable[[Callable[[T], bool]], Awaitable[bool]]
"""Gives what it takes each piece until that wants a pause (False) or there are no more (True)."""

log = structlog.get_logger("headrace.api")

OK = 200
EVENT_STREAM_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
LAST_WORDS_TIMEOUT = 5.0  # seconds for an error event to a client that may not read
_VERSION_NAME = VERSION_HEADER.lower().encode()


class Sender:
    """Of an answer by a model, whose head goes out with the first piece."""

    def __init__(self, send: Send, exchange: Exchange, connection: Connection | None) -> None:
        self._send = send
        self._exchange = exchange
        self._connection = connection

    async def forward(self, forward: Forward[T], show: Callable[[T], bytes]) -> None:
        """Send of a stream what `show` makes of all that comes; where it can, as it comes.

        A reader that is slow holds this stream up, and nothing else.
        """
        if self._connection is not None:
            await self._write_all(forward, show)
            return
        unsent = list[bytes]()

        def keep(piece: T) -> bool:
            unsent.append(show(piece))
            return False

        is_over = False
        while not is_over:
            is_over = await forward(keep)
            for shown in filter(None, unsent):
                await self.send(shown)
            unsent.clear()

    async def send(self, piece: bytes) -> None:
        """Send a piece of a stream."""
        await self._start(EVENT_STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, last: bytes) -> None:
        """Send a stream's last piece."""
        connection = self._connection
        if connection is None or self._exchange.status is None:
            await self._start(EVENT_STREAM_HEADERS)
            await self._send({"type": "http.response.body", "body": last})
            return
        await connection.drain()
        connection.end(last)
        self._exchange.num_bytes += len(last)

    async def answer(self, body: bytes) -> None:
        """Send a whole answer."""
        headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
        connection, exchange = self._connection, self._exchange
        if connection is None:
            await self._start(headers)
            await self._send({"type": "http.response.body", "body": body})
            return
        await connection.drain()
        connection.answer((*self._head(headers), *exchange.headers), body)
        exchange.status = OK
        exchange.num_bytes += len(body)

    async def fail(self, exc: Exception) -> None:
        """Say in the stream what went wrong, and end it without the marks of a complete one."""
        if isinstance(exc, HeadraceError):
            error = exc
        else:
            error = HeadraceError("Internal server error.")
            log.error("stream.fault", request_id=self._exchange.request_id, exc_info=exc)
        self._exchange.error_code = error.code
        event = b"data: %s\n\n" % error_body(error, self._exchange.request_id)
        async with asyncio.timeout(LAST_WORDS_TIMEOUT):
            await self._send({"type": "http.response.body", "body": event})

    async def _write_all(self, forward: Forward[T], show: Callable[[T], bytes]) -> None:
        """The call that brings a piece writes it."""
        assert self._connection is not None
        write = self._write

        def take(piece: T) -> bool:
            shown = show(piece)
            return write(shown) if shown else True

        while not await forward(take):
            await self._connection.drain()

    def _write(self, piece: bytes) -> bool:
        """Write a piece of a stream; whether there is room for more."""
        connection, exchange = self._connection, self._exchange
        assert connection is not None
        if exchange.status is None:
            headers = (*self._head(EVENT_STREAM_HEADERS), *exchange.headers)
            has_room = connection.start(headers, piece)
            exchange.status = OK
        else:
            has_room = connection.write(piece)
        exchange.num_bytes += len(piece)
        return has_room

    async def _start(self, headers: Headers) -> None:
        if self._exchange.status is None:
            head = {"type": "http.response.start", "status": OK, "headers": self._head(headers)}
            await self._send(head)

    def _head(self, headers: Headers) -> Headers:
        assert self._exchange.model_id is not None
        return (*headers, (_VERSION_NAME, self._exchange.model_id.encode()))
