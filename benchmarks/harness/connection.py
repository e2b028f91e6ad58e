"""One HTTP/1.1 connection on raw asyncio, with as little Python a packet as there can be."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

OnBody = Callable[[bytes], None]
OnHeader = Callable[[bytes, bytes], None]


class StaleConnectionError(ConnectionError):
    """The server closed a kept connection before it saw the request: send it on another."""


class Connection(asyncio.Protocol):
    """A kept-alive TCP connection with at most one exchange on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._on_body: OnBody | None = None
        self._on_header: OnHeader | None = None
        self._done: asyncio.Future[int] | None = None
        self._num_answers = 0
        self._has_answer_begun = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(
        self, request: bytes, on_body: OnBody, on_header: OnHeader | None = None
    ) -> int:
        """Send `request`, hand the body over piece by piece, return the status at its end."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._on_body, self._on_header = on_body, on_header
        self._has_answer_begun = False
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._done = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()
            return
        self._has_answer_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._num_answers and not self._has_answer_begun:
            self._fail(StaleConnectionError("the server closed a kept connection"))
        self._fail(exc or ConnectionResetError("the server closed the connection mid-answer"))

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._on_header is not None:
            self._on_header(name, value)

    def on_body(self, body: bytes) -> None:
        assert self._on_body is not None
        self._on_body(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self._num_answers += 1
        if self._done is not None and not self._done.done():
            self._done.set_result(self._parser.get_status_code())
        if not self._parser.should_keep_alive():
            self.close()

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
