"""The readers' side of deliveries: a stream for each request, cheap to feed, bounded if unread."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, Self

from headrace.engine.delivery import Delivery
from headrace.errors import HeadraceError
from headrace.generation import Chunk, TokenLogprob

MAX_UNREAD_CHUNKS = 32

Take = Callable[[Chunk], bool]  # answers whether it can take another one at once


class Forwarding(Protocol):
    """Chunks that can be had as they arrive, without a turn of the event loop for each."""

    async def forward(self, take: Take) -> bool:
        """Give `take` each chunk until it wants a pause (False) or there are no more (True)."""
        ...


class ChunkStreams:
    """Finds the reader of each delivery. Belongs to one event loop."""

    def __init__(self) -> None:
        self._streams: dict[str, ChunkStream] = {}

    def open(self, request_id: str, num_sequences: int = 1) -> "ChunkStream":
        """Open before the request is sent, so that nothing of it is missed."""
        if request_id in self._streams:
            raise ValueError(f"a stream of request {request_id} is already open")
        stream = ChunkStream(self, request_id, num_sequences)
        self._streams[request_id] = stream
        return stream

    def dispatch(self, deliveries: Iterable[Delivery]) -> None:
        """Hand each delivery to its reader; those whose reader has left are dropped."""
        for delivery in deliveries:
            if (stream := self._streams.get(delivery.request_id)) is None:
                continue
            if delivery.chunk is not None:
                stream.put(delivery.chunk)
            else:
                assert delivery.error is not None
                stream.fail(delivery.error)

    def fail_all(self, error: HeadraceError) -> None:
        """End every open stream with one error, as when the model's process has died."""
        for stream in list(self._streams.values()):
            stream.fail(error)

    def forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._streams)


class ChunkStream:
    """Chunks of one request for one reader; what a slow reader has not read is folded together."""

    def __init__(self, streams: ChunkStreams, request_id: str, num_sequences: int) -> None:
        self._streams = streams
        self._request_id = request_id
        self._num_unfinished = num_sequences
        self._max_unread = MAX_UNREAD_CHUNKS * num_sequences
        self._unread: list[Chunk] = []
        self._error: HeadraceError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Take | None = None

    @property
    def is_finished(self) -> bool:
        """Whether everything has arrived, though some of it may not have been read."""
        return self._num_unfinished == 0 or self._error is not None

    def put(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._num_unfinished -= 1
        if self._take is not None:
            self._hand_over(chunk, self._take)
            return
        self._unread.append(chunk)
        if len(self._unread) > self._max_unread:
            self._unread = fold_chunks(self._unread)
        self._wake()

    def fail(self, error: HeadraceError) -> None:
        if not self.is_finished:
            self._error = error
            self._wake()

    def close(self) -> None:
        """Stop listening; later deliveries are dropped."""
        self._streams.forget(self._request_id)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._unread:
            self._raise_if_over()
            await self._arrival()
        return self._pop()

    async def forward(self, take: Take) -> bool:
        """See `Forwarding`; `put` itself calls `take`, what comes in a pause waits, folded."""
        while self._unread:
            if not take(self._pop()):
                return False
        if not self.is_finished:
            self._take = take
            try:
                await self._arrival()
                if self._take is None:
                    return False
            finally:
                self._take = None
        self.close()
        if self._error is not None:
            raise self._error
        return True

    def _hand_over(self, chunk: Chunk, take: Take) -> None:
        try:
            has_room = take(chunk)
        except Exception as exc:  # noqa: BLE001 - the reader's fault is the reader's to hear of
            self._take = None
            self._wake(exc)
            return
        if not has_room:
            self._take = None
            self._wake()
        elif self._num_unfinished == 0:
            self._wake()

    def _pop(self) -> Chunk:
        if len(self._unread) > 1:
            self._unread = fold_chunks(self._unread)
        return self._unread.pop(0)

    def _raise_if_over(self) -> None:
        if self._error is not None:
            self.close()
            raise self._error
        if self._num_unfinished == 0:
            self.close()
            raise StopAsyncIteration

    async def _arrival(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
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


def fold_chunks(chunks: Iterable[Chunk]) -> list[Chunk]:
    """One chunk for each index, with everything its chunks held, in order of first appearance."""
    by_index: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        by_index.setdefault(chunk.index, []).append(chunk)
    return [_fold(run) for run in by_index.values()]


def _fold(run: list[Chunk]) -> Chunk:
    last = run[-1]
    if len(run) == 1:
        return last
    return Chunk(
        last.index,
        "".join(chunk.text for chunk in run),
        [token_id for chunk in run for token_id in chunk.token_ids],
        _fold_logprobs(run),
        last.finish_reason,
        last.stop_reason,
        last.usage,
        last.timing,
    )


def _fold_logprobs(run: list[Chunk]) -> list[TokenLogprob] | None:
    if all(chunk.logprobs is None for chunk in run):
        return None
    return [logprob for chunk in run for logprob in chunk.logprobs or ()]
