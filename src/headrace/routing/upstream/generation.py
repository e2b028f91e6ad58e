"""One request to an upstream: sent when its first chunk is asked for, aborted when closed early."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from headrace.engine.stream import Take
from headrace.errors import HeadraceError
from headrace.generation import Chunk
from headrace.routing.upstream.answer import AnswerReader
from headrace.routing.upstream.body import Body
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.events import EventParser, EventTooLargeError
from headrace.routing.upstream.refusals import Refusals

Begin = Callable[[], Awaitable[tuple[Body, AnswerReader]]]


class UpstreamGeneration:
    """The chunks of one request, one by one or as they arrive."""

    def __init__(self, begin: Begin, refusals: Refusals) -> None:
        self._begin = begin
        self._refusals = refusals
        self._parser = EventParser()
        self._body: Body | None = None
        self._reader: AnswerReader | None = None
        self._unread = deque[Chunk]()
        self._error: HeadraceError | None = None
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if not await self._has_more():
            raise StopAsyncIteration
        return self._unread.popleft()

    async def forward(self, take: Take) -> bool:
        """See `headrace.engine.stream.Forwarding`."""
        while await self._has_more():
            try:
                if not take(self._unread.popleft()):
                    return False
            except BaseException:
                self._end()
                raise
        return True

    async def aclose(self) -> None:
        self._end()

    async def _has_more(self) -> bool:
        """Whether there is an unread chunk; waits for one until the answer is over."""
        try:
            while not self._unread and not self._is_over:
                await self._receive()
        except BaseException:  # as a generator: nothing can come after what was raised
            self._end()
            raise
        return bool(self._unread)

    async def _receive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._body is None or self._reader is None:
            self._body, self._reader = await self._begin()
            if self._is_over:  # closed meanwhile
                self._body.close()
                return
        piece = await self._next_piece(self._body, self._reader)
        try:
            self._read(piece, self._reader)
        except HeadraceError as error:  # after what came before it in the same piece
            self._body.close()
            self._error = error
        if self._reader.is_complete:
            self._is_over = True
            self._body.finish()

    async def _next_piece(self, body: Body, reader: AnswerReader) -> bytes:
        try:
            return await body.read()
        except HeadraceError:
            if not reader.has_ended:
                raise
            return b""  # only the usage is missing

    def _read(self, piece: bytes, reader: AnswerReader) -> None:
        now = time.monotonic()
        if not piece:
            self._unread += reader.end(now)
            return
        try:
            events = self._parser.feed(piece)
        except EventTooLargeError as error:
            raise UpstreamBrokenError(self._refusals.sentence(f"it sent {error}")) from None
        for event in events:
            self._unread += reader.read(event, now)

    def _end(self) -> None:
        self._unread.clear()
        self._is_over = True
        if self._body is not None:
            self._body.close()
