"""A model in another process, as the api process sees it: a LanguageModel over a channel.

Outlives the worker: what has no whole answer yet goes on with the next one, where it was. Deadlines
fire on this side too, so that they fire on time while the worker is in a long step, or gone.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import Self

import msgspec

from headrace.engine.delivery import Delivery
from headrace.engine.stream import ChunkStream, ChunkStreams, Take
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NotReadyError,
    from_code,
)
from headrace.generation import Chunk, GenerationRequest, ModelInfo, Prompt
from headrace.worker import frames
from headrace.worker.channel import Channel
from headrace.worker.owed import Owed, OwedAnswers
from headrace.worker.resumable import Resumable


class RemoteModel:
    """Sends requests to whichever worker is attached and keeps them while none is."""

    def __init__(self, max_in_flight: int) -> None:
        self._owed = OwedAnswers(max_in_flight)
        self._streams = ChunkStreams()
        self._calls: dict[str, asyncio.Future[list[int] | str]] = {}
        self._numbers = itertools.count(1)
        self._to_abort: list[str] = []
        self._channel: Channel[frames.FromWorker] | None = None
        self._info: ModelInfo | None = None
        self._refusal: HeadraceError | None = None

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise NotReadyError("the model has not been loaded yet", retry_after=1.0)
        return self._info

    @property
    def num_in_flight(self) -> int:
        return len(self._owed)

    def generate(self, request: GenerationRequest) -> "RemoteGeneration":
        """Chunks as they come; closing it aborts the request."""
        return RemoteGeneration(self, request)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        call_id = self._next_call_id()
        result = await self._call(
            call_id, frames.Tokenize(call_id, prompt, add_special_tokens=add_special_tokens)
        )
        assert isinstance(result, list)
        return result

    async def detokenize(self, token_ids: list[int]) -> str:
        call_id = self._next_call_id()
        result = await self._call(call_id, frames.Detokenize(call_id, token_ids))
        assert isinstance(result, str)
        return result

    # What the supervisor tells

    def attach(self, channel: Channel[frames.FromWorker], info: ModelInfo) -> None:
        """A worker is ready: give it everything that waits."""
        self._channel = channel
        self._info = info
        for data in self._owed.to_send():
            channel.send(data)
        self._send_next_suspect()

    def lose_worker(self, reason: str) -> None:
        """The worker is gone: fail what may be to blame and keep the rest for the next."""
        self._channel = None
        for wire_id, error in self._owed.lost(reason):
            self._fail(wire_id, error)

    def fail_waiting(self, error: HeadraceError) -> None:
        """It may take long until there is a worker again: nobody who waits is to wait for it."""
        for wire_id in self._owed.ids():
            self._fail(wire_id, _again(error))

    def close(self, error: HeadraceError) -> None:
        """There will be no further worker: everyone, now and later, gets this error."""
        self._channel = None
        self._refusal = error
        self.fail_waiting(error)

    def receive_step(self, step: frames.Step) -> None:
        deliveries = step.deliveries
        for position, delivery in enumerate(deliveries):
            if (owed := self._owed.get(delivery.request_id)) is None:
                continue
            owed.has_moved = True
            if (chunk := delivery.chunk) is not None and (answer := owed.answer) is not None:
                known = answer.note(chunk)
                if chunk.finish_reason is not None:
                    deliveries[position] = Delivery(delivery.request_id, known)
                    if answer.is_whole:  # though it may not have been read
                        self._settle(delivery.request_id)
        self._streams.dispatch(deliveries)
        self._send_next_suspect()

    def receive_reply(self, reply: frames.Reply) -> None:
        call = self._calls.get(reply.call_id)
        if call is None or call.done():
            return
        if reply.error is not None:
            call.set_exception(reply.error)
        else:
            assert reply.result is not None
            call.set_result(reply.result)

    # Sending

    def _send_owed(
        self,
        wire_id: str,
        frame: frames.Generate | frames.Tokenize | frames.Detokenize,
        fail: Callable[[HeadraceError], None],
        answer: Resumable | None = None,
    ) -> None:
        if self._refusal is not None:
            raise _again(self._refusal)
        owed = Owed(_encode(frame), fail, answer)
        self._owed.add(wire_id, owed, time.monotonic())
        if self._channel is not None:
            self._channel.send(owed.send())

    def _send_next_suspect(self) -> None:
        if self._channel is not None and (data := self._owed.next_suspect()) is not None:
            self._channel.send(data)

    def _settle(self, wire_id: str) -> Owed | None:
        owed = self._owed.settle(wire_id, time.monotonic())
        self._send_next_suspect()
        return owed

    def _fail(self, wire_id: str, error: HeadraceError) -> None:
        if (owed := self._settle(wire_id)) is not None:
            owed.fail(error)

    # Requests

    def begin(self, request: GenerationRequest) -> tuple[str, ChunkStream]:
        """Send a request; the wire's id and the chunks that will come under it."""
        # A number of our own: late chunks of an aborted request must not meet a namesake.
        wire_id = f"{request.request_id}.{next(self._numbers)}"
        stream = self._streams.open(wire_id, request.sampling.n)
        try:
            _refuse_if_late(request.deadline)
            frame = frames.Generate(_seeded(request, wire_id))
            self._send_owed(wire_id, frame, stream.fail, Resumable(request))
        except BaseException:
            stream.close()
            raise
        return wire_id, stream

    def leave(self, wire_id: str, stream: ChunkStream) -> None:
        """Listen no longer; what has not been answered is aborted."""
        stream.close()
        if self._settle(wire_id) is not None and not stream.is_finished:
            self._abort(wire_id)

    def start_timer(self, wire_id: str, deadline: float | None) -> asyncio.TimerHandle | None:
        """Fail the request at its deadline, whatever the worker does."""
        if deadline is None:
            return None
        delay = deadline - time.monotonic()
        return asyncio.get_running_loop().call_later(max(0.0, delay), self._expire, wire_id)

    def _expire(self, wire_id: str) -> None:
        self._abort(wire_id)
        self._fail(wire_id, DeadlineError("the request's deadline has passed"))

    def _abort(self, wire_id: str) -> None:
        """Abort at once; those of the same turn of the event loop share a frame."""
        if not self._to_abort:
            asyncio.get_running_loop().call_soon(self._send_aborts)
        self._to_abort.append(wire_id)

    def _send_aborts(self) -> None:
        if self._channel is not None:
            self._channel.send(frames.encode(frames.Abort(self._to_abort)))
        self._to_abort = []

    # Calls

    def _next_call_id(self) -> str:
        return f"call.{next(self._numbers)}"

    async def _call(
        self, call_id: str, frame: frames.Tokenize | frames.Detokenize
    ) -> list[int] | str:
        call: asyncio.Future[list[int] | str] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        try:
            self._send_owed(call_id, frame, call.set_exception)
            return await call
        finally:
            del self._calls[call_id]
            self._settle(call_id)


class RemoteGeneration:
    """The chunks of one request: sent when first asked for, aborted when closed before its end."""

    def __init__(self, model: RemoteModel, request: GenerationRequest) -> None:
        self._model = model
        self._request = request
        self._wire_id = ""
        self._stream: ChunkStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            return await anext(self._begun())
        except BaseException:  # as a generator: nothing can come after what was raised
            self._end()
            raise

    async def forward(self, take: Take) -> bool:
        """See `headrace.engine.stream.Forwarding`."""
        if self._is_closed:
            return True
        try:
            is_over = await self._begun().forward(take)
        except BaseException:
            self._end()
            raise
        if is_over:
            self._end()
        return is_over

    async def aclose(self) -> None:
        self._end()

    def _begun(self) -> ChunkStream:
        if self._stream is None:
            self._wire_id, self._stream = self._model.begin(self._request)
            self._timer = self._model.start_timer(self._wire_id, self._request.deadline)
        return self._stream

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._model.leave(self._wire_id, self._stream)


def _refuse_if_late(deadline: float | None) -> None:
    if deadline is not None and deadline <= time.monotonic():
        raise DeadlineError("the request's deadline has passed")


def _seeded(request: GenerationRequest, wire_id: str) -> GenerationRequest:
    """With a seed of its own where it has none: another worker must draw the same tokens."""
    sampling = request.sampling
    if sampling.seed is None and sampling.temperature > 0:
        sampling = msgspec.structs.replace(sampling, seed=random.getrandbits(63))
    return msgspec.structs.replace(request, request_id=wire_id, sampling=sampling)


def _encode(frame: frames.ToWorker) -> bytes:
    try:
        return frames.encode(frame)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"the request holds a value out of range: {error}") from None


def _again(error: HeadraceError) -> HeadraceError:
    """The same error for another caller; an exception object belongs to one."""
    return from_code(error.code, error.message, param=error.param, retry_after=error.retry_after)
