"""The one path on which generated chunks leave: as server-sent events, or folded into one answer.

Headers wait for the first chunk, so that a refusal is still a status; a failure after it is an
`error` event and the end of the stream. A client that leaves cancels the work, whatever it does.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, Self, cast

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.api.connection import connection_of
from headrace.api.disconnect import until_disconnect, within
from headrace.api.exchange import Exchange, exchange_of
from headrace.api.merge import chunks_of
from headrace.api.meter import Meter
from headrace.api.sending import Sender
from headrace.api.serving import Serving
from headrace.engine.stream import Forwarding
from headrace.generation import Chunk, GenerationRequest, LanguageModel, ModelInfo, Usage
from headrace.routing.rollouts.shadow import Answer


class Work(Protocol):
    """What one HTTP request asks of a model."""

    @property
    def model(self) -> str:
        """The name to acquire."""
        ...

    @property
    def deadline(self) -> float:
        """Seconds on the monotonic clock."""
        ...

    @property
    def stream(self) -> bool: ...

    @property
    def user(self) -> str | None:
        """Whoever asks, as far as the client names one."""
        ...

    async def answer(
        self, serving: Serving, model: LanguageModel, exchange: Exchange, sender: Sender
    ) -> bytes:
        """Do it; gives the last piece of a stream, all before which is sent, or a whole answer."""
        ...


class Wire(Protocol):
    """How one API writes chunks. Made for one request."""

    def event(self, chunk: Chunk) -> bytes:
        """The server-sent events of a chunk; empty when it shows nothing."""
        ...

    def ending(self, usage: Usage | None) -> bytes:
        """The events that close a complete stream; `usage` is None where it is not known."""
        ...

    def answer(self, chunks: list[Chunk], usage: Usage | None) -> bytes:
        """The same chunks as one JSON answer."""
        ...


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Work on requests that differ in their prompts only."""

    model: str
    requests: Sequence[GenerationRequest]
    deadline: float  # seconds on the monotonic clock
    stream: bool
    wire: Callable[[ModelInfo], Wire]

    @property
    def user(self) -> str | None:
        return self.requests[0].user

    async def answer(
        self, serving: Serving, model: LanguageModel, exchange: Exchange, sender: Sender
    ) -> bytes:
        collected = list[Chunk]()
        async with _Answer(serving, self, model, exchange, collected) as answer:
            await (answer.stream(sender) if self.stream else answer.collect())
            answer.mirror()
        answer.meter.completed()
        usage = answer.meter.usage
        exchange.prompt_tokens = None if usage is None else usage.prompt_tokens
        return answer.wire.ending(usage) if self.stream else answer.wire.answer(collected, usage)


class GenerationResponse:
    """Has a model do its work, and sends what comes of it: an ASGI app, as every response is."""

    def __init__(self, serving: Serving, work: Work) -> None:
        self.serving = serving
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        sender = Sender(send, exchange, connection_of(scope))
        work = self._run(exchange, sender)
        exchange.client_left = not await until_disconnect(work, scope, receive)

    async def _run(self, exchange: Exchange, sender: Sender) -> None:
        try:
            await self._answer(exchange, sender)
        except Exception as exc:  # headers are gone: whatever failed, the reader must hear of it
            if exchange.status is None:
                raise
            await sender.fail(exc)

    async def _answer(self, exchange: Exchange, sender: Sender) -> None:
        """Hold the model until its last chunk, then send what does not need it any more."""
        work = self.work
        chosen = self.serving.traffic.choose(work.model, work.user, exchange.request_id)
        with chosen.observed(exchange, work.user), within(work.deadline):
            async with self.serving.registry.acquire(chosen.model, work.deadline) as model:
                exchange.model_id = model.info.model_id
                last = await work.answer(self.serving, model, exchange, sender)
        await (sender.end(last) if work.stream else sender.answer(last))


class _Answer:
    """The chunks of one generation, closed at its end, and what measures and writes them.

    The model is asked when the first chunk is; all that is not needed to ask comes after that.
    """

    def __init__(
        self,
        serving: Serving,
        generation: Generation,
        model: LanguageModel,
        exchange: Exchange,
        collected: list[Chunk],
    ) -> None:
        self._serving = serving
        self._generation = generation
        self._info = model.info
        self._exchange = exchange
        self._collected = collected
        self._chunks = chunks_of(model.generate, generation.requests)

    @cached_property
    def meter(self) -> Meter:
        return Meter(
            self._serving.metrics,
            self._info.model_id,
            arrived=self._exchange.arrived,
            num_choices=self._generation.requests[0].sampling.n,
        )

    @cached_property
    def wire(self) -> Wire:
        return self._generation.wire(self._info)

    async def collect(self) -> None:
        def take(chunk: Chunk) -> bool:
            self.meter.observe(chunk)
            self._collected.append(chunk)
            return True

        if (chunks := self._forwarding) is not None:
            await chunks.forward(take)
            return
        async for chunk in self._chunks:
            take(chunk)

    async def stream(self, sender: Sender) -> None:
        """Send each chunk's events as it comes."""
        if (chunks := self._forwarding) is not None:
            asyncio.get_running_loop().call_soon(self._prepare)
            await sender.forward(chunks.forward, self._event)
            return
        async for chunk in self._chunks:
            if event := self._event(chunk):
                await sender.send(event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        await self._chunks.aclose()
        if exc is not None:
            self.meter.failed(exc)
        self._exchange.completion_tokens = self.meter.num_generated
        self._exchange.ttft = self.meter.ttft

    @property
    def _forwarding(self) -> Forwarding | None:
        """The chunks, when they can be had as they arrive."""
        # isinstance looks a protocol's members up anew each time, before the model is asked.
        return cast("Forwarding", self._chunks) if hasattr(self._chunks, "forward") else None

    def mirror(self) -> None:
        """Have a candidate asked the same, if this request is one to be mirrored."""
        mirror, requests = self._exchange.mirror, self._generation.requests
        if mirror is not None and len(requests) == 1 and requests[0].sampling.n == 1:
            text = "".join(chunk.text for chunk in self._collected)
            latency = time.monotonic() - self._exchange.arrived
            mirror(requests[0], Answer(text, self.meter.num_generated or None, latency))

    def _event(self, chunk: Chunk) -> bytes:
        self.meter.observe(chunk)
        if self._exchange.mirror is not None:
            self._collected.append(chunk)
        return self.wire.event(chunk)

    def _prepare(self) -> None:
        """Make both while the model works on the first chunk."""
        _ = self.meter, self.wire
