"""The one path on which generated chunks leave: as server-sent events, or folded into one answer.

Headers wait for the first chunk, so that a refusal is still a status; a failure after it is an
`error` event and the end of the stream. A client that leaves cancels the work, whatever it does.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, Self, cast

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from headrace.api.connection import Connection, connection_of
from headrace.api.disconnect import until_disconnect, within
from headrace.api.errors import error_body
from headrace.api.exchange import Exchange, Headers, exchange_of
from headrace.api.merge import chunks_of
from headrace.api.meter import Meter
from headrace.api.serving import VERSION_HEADER, Serving
from headrace.engine.stream import Forwarding
from headrace.errors import HeadraceError
from headrace.generation import Chunk, GenerationRequest, LanguageModel, ModelInfo, Usage

log = structlog.get_logger("headrace.api")

OK = 200
EVENT_STREAM_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_VERSION_NAME = VERSION_HEADER.lower().encode()
LAST_WORDS_TIMEOUT = 5.0  # seconds for an error event to a client that may not read


class Wire(Protocol):
    """How one API writes chunks. Made for one request."""

    def event(self, chunk: Chunk) -> bytes:
        """The server-sent events of a chunk; empty when it shows nothing."""
        ...

    def ending(self, usage: Usage) -> bytes:
        """The events that close a complete stream."""
        ...

    def answer(self, chunks: list[Chunk], usage: Usage) -> bytes:
        """The same chunks as one JSON answer."""
        ...


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What one HTTP request asks for; its requests differ in their prompts only."""

    model: str
    requests: Sequence[GenerationRequest]
    deadline: float  # seconds on the monotonic clock
    stream: bool
    wire: Callable[[ModelInfo], Wire]


class GenerationResponse:
    """Runs a generation and sends what it yields: an ASGI app, as every response is."""

    def __init__(self, serving: Serving, generation: Generation) -> None:
        self.serving = serving
        self.generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        sender = _Sender(send, exchange, connection_of(scope))
        work = self._run(exchange, sender)
        exchange.client_left = not await until_disconnect(work, scope, receive)

    async def _run(self, exchange: Exchange, sender: "_Sender") -> None:
        try:
            await self._generate(exchange, sender)
        except Exception as exc:  # headers are gone: whatever failed, the reader must hear of it
            if exchange.status is None:
                raise
            await sender.fail(exc)

    async def _generate(self, exchange: Exchange, sender: "_Sender") -> None:
        """Hold the model until its last chunk, then send what does not need it any more."""
        work, collected = self.generation, list[Chunk]()
        with within(work.deadline):
            async with self.serving.registry.acquire(work.model, work.deadline) as model:
                exchange.model_id = model.info.model_id
                async with _Answer(self.serving, work, model, exchange) as answer:
                    await (sender.stream(answer) if work.stream else answer.collect(collected))
        answer.meter.completed()
        usage = answer.meter.usage
        exchange.prompt_tokens = usage.prompt_tokens
        if work.stream:
            await sender.end(answer.wire.ending(usage))
        else:
            await sender.answer(answer.wire.answer(collected, usage))


class _Answer:
    """The chunks of one generation, closed at its end, and what measures and writes them.

    The model is asked when the first chunk is; all that is not needed to ask comes after that.
    """

    def __init__(
        self, serving: Serving, generation: Generation, model: LanguageModel, exchange: Exchange
    ) -> None:
        self._serving = serving
        self._generation = generation
        self._info = model.info
        self._exchange = exchange
        self.chunks = chunks_of(model.generate, generation.requests)

    @property
    def forwarding(self) -> Forwarding | None:
        """The chunks, when they can be had as they arrive."""
        # isinstance looks a protocol's members up anew each time, before the model is asked.
        return cast("Forwarding", self.chunks) if hasattr(self.chunks, "forward") else None

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

    async def collect(self, into: list[Chunk]) -> None:
        def take(chunk: Chunk) -> bool:
            self.meter.observe(chunk)
            into.append(chunk)
            return True

        if (chunks := self.forwarding) is not None:
            await chunks.forward(take)
            return
        async for chunk in self.chunks:
            take(chunk)

    def prepare(self) -> None:
        """Make both while the model works on the first chunk."""
        _ = self.meter, self.wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        await self.chunks.aclose()
        if exc is not None:
            self.meter.failed(exc)
        self._exchange.completion_tokens = self.meter.num_generated


class _Sender:
    """The ASGI messages of one answer, or a stream past them where it can go."""

    def __init__(self, send: Send, exchange: Exchange, connection: Connection | None) -> None:
        self._send = send
        self._exchange = exchange
        self._connection = connection

    async def stream(self, answer: _Answer) -> None:
        """Send each chunk's events as it comes; a slow reader holds this stream up, nothing else.

        Where chunks can be forwarded, the call that brings one writes it.
        """
        if self._connection is not None and (chunks := answer.forwarding) is not None:
            await self._forward(chunks, self._connection, answer)
            return
        async for chunk in answer.chunks:
            answer.meter.observe(chunk)
            event = answer.wire.event(chunk)
            if event:
                await self._start(EVENT_STREAM_HEADERS)
                await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def _forward(self, chunks: Forwarding, connection: Connection, answer: _Answer) -> None:
        exchange, write = self._exchange, connection.write

        def take(chunk: Chunk) -> bool:
            answer.meter.observe(chunk)
            event = answer.wire.event(chunk)
            if not event:
                return True
            if exchange.status is None:
                headers = (*self._head(EVENT_STREAM_HEADERS), *exchange.headers)
                has_room = connection.start(headers, event)
                exchange.status = OK
            else:
                has_room = write(event)
            exchange.num_bytes += len(event)
            return has_room

        asyncio.get_running_loop().call_soon(answer.prepare)
        while not await chunks.forward(take):
            await connection.drain()

    async def end(self, event: bytes) -> None:
        await self._start(EVENT_STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": event})

    async def answer(self, body: bytes) -> None:
        await self._start(
            ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
        )
        await self._send({"type": "http.response.body", "body": body})

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

    async def _start(self, headers: Headers) -> None:
        if self._exchange.status is None:
            head = {"type": "http.response.start", "status": OK, "headers": self._head(headers)}
            await self._send(head)

    def _head(self, headers: Headers) -> Headers:
        assert self._exchange.model_id is not None
        return (*headers, (_VERSION_NAME, self._exchange.model_id.encode()))
