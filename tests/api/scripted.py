"""A registry and a language model that say what a test wrote down."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.endpoints import EndpointStatus
from headrace.engine.delivery import Delivery
from headrace.engine.stream import ChunkStreams
from headrace.errors import DrainingError, HeadraceError, ModelNotFoundError
from headrace.generation import (
    Chat,
    Chunk,
    EngineStats,
    GenerationRequest,
    ModelInfo,
    Prompt,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headrace.registry.lifecycle import SERVING, State
from headrace.registry.status import ModelStatus

WORDS = ["Water", " turns", " the", " wheel", " é", "!"]

ENDPOINT = EndpointStatus(
    name="gpu-1",
    kind="worker",
    is_taking=False,
    breaker="half_open",
    weight=2.0,
    num_in_flight=3,
    tokens_in_flight=40,
    latency=0.25,
    reason="it answered 500",
)


def info(model_id: str = "chat@1") -> ModelInfo:
    return ModelInfo(
        model_id=model_id,
        architecture="scripted",
        executor="scripted",
        precision="fp32",
        kv_cache_precision="fp32",
        max_model_len=1024,
        vocab_size=256,
        block_size=16,
        num_blocks=64,
        has_chat_template=True,
        fingerprint="fp_scripted",
    )


@dataclass
class ScriptedModel:
    """Answers every request with `words`, one a token, or with what `script` yields."""

    info: ModelInfo = field(default_factory=info)
    words: Sequence[str] = tuple(WORDS)
    script: Callable[["ScriptedModel", GenerationRequest], AsyncIterator[Chunk]] | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        self.running.add(request.request_id)
        self.idle.clear()
        try:
            async for chunk in (self.script or say_words)(self, request):
                yield chunk
        finally:
            self.running.discard(request.request_id)
            if not self.running:
                self.idle.set()

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        if isinstance(prompt, Chat):
            prompt = "".join(message.content for message in prompt.messages)
        assert isinstance(prompt, str)
        return [1] * add_special_tokens + list(prompt.encode())

    async def detokenize(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


async def say_words(model: ScriptedModel, request: GenerationRequest) -> AsyncIterator[Chunk]:
    sampling = request.sampling
    count = min(sampling.max_tokens or len(model.words), len(model.words))
    for number, word in enumerate(model.words[:count]):
        await asyncio.sleep(0)
        for index in range(sampling.n):
            text = str(request.prompt) + word if sampling.echo and not number else word
            yield chunk_of(text, request, index, is_last=number == count - 1, count=count)


def chunk_of(
    text: str, request: GenerationRequest, index: int, *, is_last: bool, count: int
) -> Chunk:
    wants = request.sampling.logprobs
    token = text.encode()
    top = [TopLogprob(7, token, -0.25), TopLogprob(8, b"\xc3", float("-inf"))]
    return Chunk(
        index,
        text,
        [7],
        logprobs=None if wants is None else [TokenLogprob(7, token, -0.25, top[:wants])],
        finish_reason=("length" if request.sampling.max_tokens == count else "stop")
        if is_last
        else None,
        usage=Usage(11, count, 4) if is_last else None,
        timing=Timing(0.001, 0.002, 0.010, 3) if is_last else None,
    )


@dataclass
class ScriptedRegistry:
    """Serves `models`, the first version of a name being the active one."""

    models: list[ScriptedModel] = field(default_factory=lambda: [ScriptedModel()])
    stats: EngineStats = field(
        default_factory=lambda: EngineStats(num_blocks=64, num_free_blocks=64)
    )
    error: HeadraceError | None = None
    is_draining: bool = False
    state: State | None = None
    phase: str = ""
    leases: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: list[Callable[[ModelStatus], None]] = field(default_factory=list)

    async def start(self, specs: Sequence[object]) -> None:
        self.specs = specs

    @asynccontextmanager
    async def acquire(
        self,
        name: str,
        deadline: float | None = None,  # noqa: ARG002  # the interface
    ) -> AsyncIterator[ScriptedModel]:
        if self.error is not None:
            raise self.error
        if self.is_draining:
            raise DrainingError("The server is shutting down.", retry_after=1.2)
        model = self._find(name)
        self.leases += 1
        self.free.clear()
        try:
            yield model
        finally:
            self.leases -= 1
            if not self.leases:
                self.free.set()

    def statuses(self) -> list[ModelStatus]:
        seen: set[str] = set()
        return [self._status(model, seen) for model in self.models]

    def available(self) -> list[ModelStatus]:
        return [each for each in self.statuses() if each.is_answering or each.phase == "idle"]

    @property
    def is_ready(self) -> bool:
        return bool(self.models) and not self.is_draining

    def listen(self, listener: Callable[[ModelStatus], None]) -> None:
        self.listeners.append(listener)

    def listen_for_ends(
        self, *, of_change: Callable[[str, str], None], of_version: Callable[[str, int], None]
    ) -> None:
        of_change("load", "done")  # of what is there
        self.on_forgotten = of_version

    async def loaded(self) -> None:
        for status in self.statuses():
            for listener in self.listeners:
                listener(status)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109  # the registry's interface
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout):
                if self.leases:
                    await self.free.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, drain_timeout: float | None = None) -> None:  # noqa: ARG002  # the registry's interface
        self.models = []

    def _find(self, name: str) -> ScriptedModel:
        for model in self.models:
            model_id = model.info.model_id
            if name in (model_id, model_id.partition("@")[0]):
                return model
        raise ModelNotFoundError(f"Model {name!r} is not served.", param="model")

    def _status(self, model: ScriptedModel, seen: set[str]) -> ModelStatus:
        name, _, version = model.info.model_id.partition("@")
        state = self.state or ("ready" if name in seen else "active")
        seen.add(name)
        return ModelStatus(
            model_id=model.info.model_id,
            name=name,
            version=int(version),
            state=state,
            is_answering=state in SERVING and not self.phase,
            progress=1.0,
            phase=self.phase,
            health_score=1.0,
            memory_bytes=1 << 20,
            loaded_at=1_700_000_000.0,
            info=model.info,
            stats=self.stats,
            endpoints=(ENDPOINT,),
        )


class SteppingEngine:
    """Delivers one token to every stream a step, as the worker's channel does."""

    def __init__(self, num_tokens: int, word: str = " water") -> None:
        self.num_tokens = num_tokens
        self.word = word
        self.streams = ChunkStreams()
        self.open: dict[str, int] = {}

    async def script(
        self, _model: ScriptedModel, request: GenerationRequest
    ) -> AsyncIterator[Chunk]:
        stream = self.streams.open(request.request_id, request.sampling.n)
        self.open[request.request_id] = 0
        try:
            async for chunk in stream:
                yield chunk
        finally:
            self.open.pop(request.request_id, None)
            stream.close()

    def step(self) -> None:
        self.streams.dispatch([self._next(request_id) for request_id in list(self.open)])

    def _next(self, request_id: str) -> Delivery:
        self.open[request_id] += 1
        number = self.open[request_id]
        is_last = number == self.num_tokens
        if is_last:
            del self.open[request_id]
        return Delivery(
            request_id,
            Chunk(
                0,
                self.word,
                [number],
                finish_reason="length" if is_last else None,
                usage=Usage(128, number, 0) if is_last else None,
                timing=Timing(0.0, 0.0, 0.1, 32) if is_last else None,
            ),
        )
