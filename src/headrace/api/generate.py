"""Our own words API: generate, and how full the batches are."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.exchange import Exchange, exchange_of, new_id
from headrace.api.openai.requests import HARMLESS, refuse_unsupported
from headrace.api.openai.schema import ModelName, UnservedFields, Unsupported
from headrace.api.openapi import describe
from headrace.api.sampling import (
    MaxTokens,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    User,
    given,
    stop_strings,
)
from headrace.api.serving import Serving
from headrace.api.sse import Generation, GenerationResponse
from headrace.api.tracing import trace_of
from headrace.engine.stream import fold_chunks
from headrace.generation import (
    Chunk,
    EngineStats,
    GenerationRequest,
    ModelInfo,
    SamplingParams,
    Timing,
    Usage,
)

_encode = msgspec.json.Encoder().encode


DEFAULT_MAX_TOKENS = 256
DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.9

# What clients of the OpenAI routes may look for here, with the values that ask for nothing.
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    **HARMLESS,
    "answered": ([],),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "messages": (),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "top_logprobs": (0,),
}


class GenerateRequest(UnservedFields, kw_only=True):
    """`POST /api/v1/generate`."""

    prompt: str
    model: ModelName | None = None
    max_tokens: MaxTokens | None = DEFAULT_MAX_TOKENS
    temperature: Temperature | None = DEFAULT_TEMPERATURE
    top_p: TopP | None = DEFAULT_TOP_P
    top_k: TopK | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    stream: bool = False
    user_id: User | None = None
    answered: Unsupported = None
    best_of: Unsupported = None
    echo: Unsupported = None
    frequency_penalty: Unsupported = None
    ignore_eos: Unsupported = None
    logit_bias: Unsupported = None
    logprobs: Unsupported = None
    max_completion_tokens: Unsupported = None
    messages: Unsupported = None
    min_p: Unsupported = None
    min_tokens: Unsupported = None
    n: Unsupported = None
    presence_penalty: Unsupported = None
    repetition_penalty: Unsupported = None
    return_token_ids: Unsupported = None
    skip_special_tokens: Unsupported = None
    stop_token_ids: Unsupported = None
    top_logprobs: Unsupported = None


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GenerateMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request's time went; `batch_size` is the largest batch it ran in.

    null is what an upstream did not tell.
    """

    queue_time_ms: float | None
    time_to_first_token_ms: float
    generation_time_ms: float
    total_time_ms: float
    tokens_per_second: float | None
    batch_size: int | None


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A full answer; the last event of a stream has the same fields."""

    request_id: str
    model: str
    version: str
    text: str
    finish_reason: Literal["stop", "length"]
    usage: TokenCounts | None
    metrics: GenerateMetrics


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How busy one engine, or all of them, are."""

    running: int
    waiting: int
    waiting_tokens: int
    blocks: int
    free_blocks: int


class ModelBatch(BatchCounts, frozen=True, kw_only=True):
    """One version's engine: now, and since it started."""

    model: str
    version: str
    state: str
    steps: int
    prompt_tokens: int
    generated_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    preemptions: int
    aborted: int


class BatchStatus(BatchCounts, frozen=True, kw_only=True):
    """All engines together, and each."""

    models: list[ModelBatch]


class GenerateRoutes:
    """`/api/v1`, as far as it generates."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1", tags=["Headrace"])
        router.post(
            "/generate",
            **describe("Continue a text", body=GenerateRequest, answer=GenerateAnswer, stream=True),
        )(self.generate)
        router.get("/batch/status", **describe("How busy the engines are", answer=BatchStatus))(
            self.batch_status
        )
        return router

    async def generate(self, request: Request) -> GenerationResponse:
        deadline = self.serving.deadline(request)
        body = await read_json(request, GenerateRequest, deadline)
        refuse_unsupported(body, _HARMLESS)
        work = GenerationRequest(
            request_id=f"gen-{new_id()}",
            prompt=body.prompt,
            sampling=_sampling(body),
            deadline=deadline,
            user=body.user_id,
            trace=trace_of(request.scope),
        )
        generation = Generation(
            model=self.serving.resolve(request, body.model),
            requests=[work],
            deadline=deadline,
            stream=body.stream,
            wire=partial(GenerateWire, exchange_of(request.scope)),
        )
        return GenerationResponse(self.serving, generation)

    async def batch_status(self, _request: Request) -> Response:
        batches = [
            _batch(status.name, status.model_id, status.state, status.stats)
            for status in self.serving.registry.statuses()
            if status.stats is not None
        ]
        return json_response(
            BatchStatus(
                running=sum(batch.running for batch in batches),
                waiting=sum(batch.waiting for batch in batches),
                waiting_tokens=sum(batch.waiting_tokens for batch in batches),
                blocks=sum(batch.blocks for batch in batches),
                free_blocks=sum(batch.free_blocks for batch in batches),
                models=batches,
            )
        )


class GenerateWire:
    """Events with a piece of text each, the last one with everything else."""

    def __init__(self, exchange: Exchange, info: ModelInfo) -> None:
        self._exchange = exchange
        self._model, _, self._version = info.model_id.rpartition("@")
        self._prefix = (
            b'data: {"request_id":' + _encode(exchange.request_id) + b',"index":0,"text":'
        )
        self._last: Chunk | None = None

    def event(self, chunk: Chunk) -> bytes:
        if chunk.finish_reason is not None:
            self._last = chunk
        if not chunk.text:
            return b""
        return self._prefix + _encode(chunk.text) + b',"finish_reason":null}\n\n'

    def ending(self, usage: Usage | None) -> bytes:
        assert self._last is not None
        return b"data: %s\n\n" % _encode(self._answer(self._last, "", usage))

    def answer(self, chunks: list[Chunk], usage: Usage | None) -> bytes:
        (whole,) = fold_chunks(chunks)
        return _encode(self._answer(whole, whole.text, usage))

    def _answer(self, last: Chunk, text: str, usage: Usage | None) -> GenerateAnswer:
        assert last.finish_reason is not None
        assert last.timing is not None
        return GenerateAnswer(
            request_id=self._exchange.request_id,
            model=self._model,
            version=self._version,
            text=text,
            finish_reason=last.finish_reason,
            usage=None if usage is None else _counts(usage),
            metrics=self._metrics(last.timing, usage),
        )

    def _metrics(self, timing: Timing, usage: Usage | None) -> GenerateMetrics:
        queued, seconds = timing.queue_time, timing.generation_time
        return GenerateMetrics(
            queue_time_ms=None if queued is None else _ms(queued),
            time_to_first_token_ms=_ms(timing.time_to_first_token),
            generation_time_ms=_ms(seconds),
            total_time_ms=_ms(time.monotonic() - self._exchange.arrived),
            tokens_per_second=None if usage is None else _rate(usage.completion_tokens, seconds),
            batch_size=timing.batch_size,
        )


def _sampling(body: GenerateRequest) -> SamplingParams:
    return SamplingParams(
        max_tokens=given(body.max_tokens, DEFAULT_MAX_TOKENS),
        temperature=given(body.temperature, DEFAULT_TEMPERATURE),
        top_p=given(body.top_p, DEFAULT_TOP_P),
        top_k=max(0, body.top_k or 0),
        stop=stop_strings(body.stop),
        seed=body.seed,
    )


def _batch(name: str, model_id: str, state: str, stats: EngineStats) -> ModelBatch:
    return ModelBatch(
        model=name,
        version=model_id.rpartition("@")[2],
        state=state,
        running=stats.num_running,
        waiting=stats.num_waiting,
        waiting_tokens=stats.num_waiting_tokens,
        blocks=stats.num_blocks,
        free_blocks=stats.num_free_blocks,
        steps=stats.num_steps,
        prompt_tokens=stats.num_prompt_tokens,
        generated_tokens=stats.num_generated_tokens,
        prefix_cache_queries=stats.num_prefix_cache_queries,
        prefix_cache_hits=stats.num_prefix_cache_hits,
        preemptions=stats.num_preemptions,
        aborted=stats.num_aborted,
    )


def _counts(usage: Usage) -> TokenCounts:
    total = usage.prompt_tokens + usage.completion_tokens
    return TokenCounts(usage.prompt_tokens, usage.completion_tokens, total)


def _rate(num_tokens: int, seconds: float) -> float:
    return round(num_tokens / seconds, 3) if seconds > 0 else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
