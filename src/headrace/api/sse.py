"""The one path on which generated chunks leave: as server-sent events, or folded into one answer.

Headers wait for the first chunk, so that a refusal is still a status; a failure after it is an
`error` event and the end of the stream. A client that leaves cancels the work, whatever it does.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.connection import Connection, connection_of
from headrace.api.disconnect import until_disconnect, within
from headrace.api.errors import error_body
from headrace.api.exchange import Exchange, exchange_of
from headrace.api.merge import chunks_of
from headrace.api.meter import Meter
from headrace.api.serving import VERSION_HEADER, Serving
from headrace.engine.stream import Forwarding
from headrace.errors import HeadraceError, WorkerDiedError
from headrace.generation import Chunk, GenerationRequest, LanguageModel, ModelInfo, Usage

log = structlog.get_logger("headrace.api")

EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
MAX_TRIES = 3  # of an answer that is sent whole
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one HTTP request asks for; its requests differ in their prompts only."""

    model: str
    requests: Sequence[GenerationRequest]
    deadline: float  # seconds on the monotonic clock
    stream: bool
    wire: Callable[[ModelInfo], Wire]


class GenerationResponse(Response):
    """Runs a generation and sends what it yields."""

    def __init__(self, serving: Serving, generation: Generation) -> None:
        super().__init__()
        self.serving = serving
        self.generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        sender = _Sender(send, exchange, connection_of(scope))
        exchange.client_left = not await until_disconnect(self._run(exchange, sender), receive)

    async def _run(self, exchange: Exchange, sender: "_Sender") -> None:
        try:
            await self._generate(exchange, sender)
        except Exception as exc:  # headers are gone: whatever failed, the reader must hear of it
            if not sender.has_started:
                raise
            await sender.fail(exc)

    async def _generate(self, exchange: Exchange, sender: "_Sender") -> None:
        """Hold the model until its last chunk, then send what does not need it any more."""
        work = self.generation
        async with (
            within(work.deadline),
            self.serving.registry.acquire(work.model) as model,
        ):
            exchange.model_id = sender.model_id = model.info.model_id
            wire = work.wire(model.info)
            if work.stream:
                async with self._metered(model, exchange) as (chunks, meter):
                    await sender.stream(chunks, wire, meter)
            else:
                collected, meter = await self._collect(model, exchange)
        meter.completed()
        exchange.prompt_tokens = meter.usage.prompt_tokens
        if work.stream:
            await sender.end(wire.ending(meter.usage))
        else:
            await sender.answer(wire.answer(collected, meter.usage))

    async def _collect(self, model: LanguageModel, exchange: Exchange) -> tuple[list[Chunk], Meter]:
        """Every chunk. The client has seen none, so a worker that dies may be tried again."""
        for retries_left in reversed(range(MAX_TRIES)):
            collected: list[Chunk] = []
            async with self._metered(model, exchange) as (chunks, meter):
                try:
                    async for chunk in chunks:
                        meter.observe(chunk)
                        collected.append(chunk)
                except WorkerDiedError:
                    # Without a chunk, the request itself is suspected of what happened.
                    if not (retries_left and collected):
                        raise
                    log.warning("request.retried", request_id=exchange.request_id)
                    continue
            break
        return collected, meter

    @asynccontextmanager
    async def _metered(
        self, model: LanguageModel, exchange: Exchange
    ) -> AsyncGenerator[tuple[AsyncGenerator[Chunk, None], Meter], None]:
        """One try: its chunks, and what is to measure them."""
        meter = self._meter(exchange)
        try:
            async with aclosing(chunks_of(model.generate, self.generation.requests)) as chunks:
                yield chunks, meter
        except BaseException as exc:
            meter.failed(exc)
            raise
        finally:
            exchange.completion_tokens = meter.num_generated

    def _meter(self, exchange: Exchange) -> Meter:
        assert exchange.model_id is not None
        return Meter(
            self.serving.metrics,
            exchange.model_id,
            arrived=exchange.arrived,
            num_choices=self.generation.requests[0].sampling.n,
        )


class _Sender:
    """The ASGI messages of one answer, and the middle of a stream past them where it can go."""

    def __init__(self, send: Send, exchange: Exchange, connection: Connection | None) -> None:
        self.has_started = False
        self.model_id = ""
        self._send = send
        self._exchange = exchange
        self._connection = connection

    async def stream(self, chunks: AsyncGenerator[Chunk, None], wire: Wire, meter: Meter) -> None:
        """Send each chunk's events as it comes; a slow reader holds this stream up, nothing else.

        After the first ones, chunks that can be forwarded are written as they arrive.
        """
        async for chunk in chunks:
            meter.observe(chunk)
            event = wire.event(chunk)
            if not event:
                continue
            if not self.has_started:
                await self._start(EVENT_STREAM_HEADERS)
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
            if self._connection is not None and isinstance(chunks, Forwarding):
                await self._forward(chunks, self._connection, wire, meter)
                return

    async def _forward(
        self, chunks: Forwarding, connection: Connection, wire: Wire, meter: Meter
    ) -> None:
        exchange = self._exchange
        observe, event_of, write = meter.observe, wire.event, connection.write

        def take(chunk: Chunk) -> bool:
            observe(chunk)
            event = event_of(chunk)
            if not event:
                return True
            exchange.num_bytes += len(event)
            return write(event)

        while not await chunks.forward(take):
            await connection.drain()

    async def end(self, event: bytes) -> None:
        if not self.has_started:
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

    async def _start(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.has_started = True
        version = (VERSION_HEADER.lower().encode(), self.model_id.encode())
        message = {"type": "http.response.start", "status": 200, "headers": [*headers, version]}
        await self._send(message)
