"""A model in another process, as the api process sees it: a LanguageModel over a channel.

Keeps nothing for a worker to come: what a worker had when it was lost fails. Deadlines fire on this
side too, so that they fire on time while the worker is in a long step.
"""

import asyncio
import itertools
import time
from typing import Self

import msgspec

from headrace.engine.stream import ChunkStream, ChunkStreams, Take
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NotReadyError,
    WorkerDiedError,
    again,
)
from headrace.generation import Chunk, GenerationRequest, ModelInfo, Prompt
from headrace.worker import frames
from headrace.worker.channel import Channel
from headrace.worker.in_flight import InFlight

RETRY_AFTER = 1.0  # seconds


class RemoteModel:
    """Sends requests to the worker that is attached, and refuses them while none is."""

    def __init__(self, max_in_flight: int) -> None:
        self._in_flight = InFlight(max_in_flight)
        self._streams = ChunkStreams()
        self._unanswered: dict[str, ChunkStream] = {}
        self._calls: dict[str, asyncio.Future[list[int] | str]] = {}
        self._numbers = itertools.count(1)
        self._to_abort: list[str] = []
        self._channel: Channel[frames.FromWorker] | None = None
        self._info: ModelInfo | None = None
        self._refusal: HeadraceError | None = None

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise NotReadyError("the model has not been loaded yet", retry_after=RETRY_AFTER)
        return self._info

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

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
        """A worker is ready."""
        self._channel = channel
        self._info = info

    def lose_worker(self, reason: str) -> None:
        """The worker is gone, and with it whatever it had."""
        self._channel = None
        self._fail_all(WorkerDiedError(reason))

    def close(self, error: HeadraceError) -> None:
        """There will be no further worker: everyone, now and later, gets this error."""
        self._channel = None
        self._refusal = error
        self._fail_all(error)

    def receive_step(self, step: frames.Step) -> None:
        self._streams.dispatch(step.deliveries)
        for delivery in step.deliveries:
            if delivery.chunk is None or delivery.chunk.finish_reason is not None:
                self._settle_if_answered(delivery.request_id)

    def receive_reply(self, reply: frames.Reply) -> None:
        call = self._calls.get(reply.call_id)
        if call is None or call.done():
            return
        if reply.error is not None:
            call.set_exception(reply.error)
        else:
            assert reply.result is not None
            call.set_result(reply.result)

    # What is in flight

    def _send(
        self, entry_id: str, frame: frames.Generate | frames.Tokenize | frames.Detokenize
    ) -> None:
        if self._refusal is not None:
            raise again(self._refusal)
        if self._channel is None:
            raise NotReadyError("no worker of the model is ready", retry_after=RETRY_AFTER)
        data = _encode(frame)
        self._in_flight.add(entry_id, len(data), time.monotonic())
        self._channel.send(data)

    def _settle(self, entry_id: str) -> bool:
        self._unanswered.pop(entry_id, None)
        return self._in_flight.settle(entry_id, time.monotonic())

    def _settle_if_answered(self, wire_id: str) -> None:
        """Though it may not have been read: the worker has nothing more to do for it."""
        stream = self._unanswered.get(wire_id)
        if stream is not None and stream.is_finished:
            self._settle(wire_id)

    def _fail_all(self, error: HeadraceError) -> None:
        for wire_id, stream in list(self._unanswered.items()):
            self._settle(wire_id)
            stream.fail(again(error))
        for call_id, call in self._calls.items():
            self._settle(call_id)
            if not call.done():
                call.set_exception(again(error))

    # Requests

    def begin(self, request: GenerationRequest) -> tuple[str, ChunkStream]:
        """Send a request; the wire's id and the chunks that will come under it."""
        _refuse_if_late(request.deadline)
        # A number of our own: late chunks of an aborted request must not meet a namesake.
        wire_id = f"{request.request_id}.{next(self._numbers)}"
        self._send(wire_id, frames.Generate(msgspec.structs.replace(request, request_id=wire_id)))
        stream = self._streams.open(wire_id, request.sampling.n)
        self._unanswered[wire_id] = stream
        return wire_id, stream

    def leave(self, wire_id: str, stream: ChunkStream) -> None:
        """Listen no longer; what has not been answered is aborted."""
        stream.close()
        if self._settle(wire_id):
            self._abort(wire_id)

    def start_timer(self, wire_id: str, deadline: float | None) -> asyncio.TimerHandle | None:
        """Fail the request at its deadline, whatever the worker does."""
        if deadline is None:
            return None
        delay = deadline - time.monotonic()
        return asyncio.get_running_loop().call_later(max(0.0, delay), self._expire, wire_id)

    def _expire(self, wire_id: str) -> None:
        if (stream := self._unanswered.get(wire_id)) is not None:
            self._settle(wire_id)
            self._abort(wire_id)
            stream.fail(DeadlineError("the request's deadline has passed"))

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
        self._send(call_id, frame)
        call: asyncio.Future[list[int] | str] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        try:
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


def _encode(frame: frames.ToWorker) -> bytes:
    try:
        return frames.encode(frame)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"the request holds a value out of range: {error}") from None
