"""An answer as its one reader sees it: a head, then a body in pieces. Knows no HTTP.

The call that brings bytes hands them on to a reader that forwards, so that a piece costs no turn of
the event loop. What nobody reads is bounded: the connection pauses.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.routing.http.errors import HttpError, UnreachableError

MAX_UNREAD_BYTES = 64 << 10  # and what one read brings beyond

Take = Callable[[bytes], bool]  # answers whether it can take another piece at once


class Source(Protocol):
    """The connection that an answer comes on."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...


class Answer:
    """`is_over` once all of it has come, which is so already when the last piece is taken."""

    def __init__(self, source: Source) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_over = False
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._unread: list[bytes] = []
        self._num_unread = 0
        self._is_paused = False
        self._error: HttpError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Take | None = None

    # The reader's side

    async def head(self) -> None:
        """Wait for `status` and `headers`."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._arrival()

    async def read(self) -> bytes:
        """What has come of the body, at least a byte; none at its end."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return b""
            await self._arrival()
        return self._pop()

    async def forward(self, take: Take) -> bool:
        """Give `take` each piece until it wants a pause (False) or there are no more (True)."""
        if self._unread and not take(self._pop()):
            return False
        if not self.is_over and self._error is None:
            self._take = take
            try:
                await self._arrival()
                if self._take is None:
                    return False
            finally:
                self._take = None
        if self._error is not None:
            raise self._error
        return True

    def abort(self) -> None:
        """Want no more of it: an answer that is not over costs its connection."""
        if self.is_over or self._error is not None:
            return
        self._unread.clear()
        self.fail(UnreachableError("the connection broke"))
        self._source.abort()

    # The connection's side

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def put(self, piece: bytes) -> None:
        if self._take is not None:
            self._hand_over(piece, self._take)
            return
        self._unread.append(piece)
        self._num_unread += len(piece)
        if self._num_unread > MAX_UNREAD_BYTES and not self._is_paused and not self.is_over:
            self._is_paused = True
            self._source.pause()
        self._wake()

    def end(self) -> None:
        self._wake()

    def fail(self, error: HttpError) -> None:
        """After what has come."""
        self._error = self._error or error
        self._wake()

    def _hand_over(self, piece: bytes, take: Take) -> None:
        try:
            has_room = take(piece)
        except Exception as fault:  # noqa: BLE001  # the reader's fault is the reader's to hear of
            self._take = None
            self._wake(fault)
            return
        if not has_room:
            self._take = None
            self._wake()

    def _pop(self) -> bytes:
        piece = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._num_unread = 0
        if self._is_paused and not self.is_over:  # then the connection may be another's
            self._is_paused = False
            self._source.resume()
        return piece

    async def _arrival(self) -> None:
        assert self._reader is None, "an answer has one reader"
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self, fault: Exception | None = None) -> None:
        if self._reader is None or self._reader.done():
            return
        if fault is None:
            self._reader.set_result(None)
        else:
            self._reader.set_exception(fault)
