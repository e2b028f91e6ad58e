"""A worker whose model counts, dies when a test wants it to, and goes on where it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable

from headrace.errors import HeadraceError, NotReadyError, WorkerDiedError
from headrace.generation import Chunk, GenerationRequest, ModelInfo, Prompt, Timing, Usage

LENGTH = 6
INFO = ModelInfo(
    model_id="somewhere@9",
    architecture="counting",
    executor="script",
    precision="fp32",
    kv_cache_precision="fp32",
    max_model_len=100,
    vocab_size=100,
    block_size=16,
    num_blocks=1,
    has_chat_template=False,
    fingerprint="fp",
)


def counted(length: int = LENGTH) -> str:
    return "".join(f"{number} " for number in range(length))


class CountingWorker:
    """`faults` are raised by its next requests, each after so many tokens of its own."""

    def __init__(self, name: str, *, is_ready: bool = True) -> None:
        self.name = name
        self.is_ready = is_ready
        self.is_coming_back = False
        self.max_in_flight = 8
        self.model = CountingModel(self)
        self.faults: list[tuple[int, Exception]] = []
        self.asked: list[GenerationRequest] = []
        self.info: ModelInfo = INFO
        self.killers: set[str] = set()
        """Prompts that it dies of before their first token."""
        self.on_kill: Callable[[], None] = self.die
        self.num_running = 0
        self.pause = asyncio.Event()
        self.pause.set()
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def refusal(self) -> HeadraceError | None:
        if self.is_ready or self.is_coming_back:
            return None
        return NotReadyError(f"{self.name} is loading", retry_after=7.0)

    def die(self, *, comes_back: bool = True) -> None:
        """All that it runs fails; whoever routes has to be told."""
        self.is_ready, self.is_coming_back = False, comes_back
        self._death.set_exception(WorkerDiedError(f"{self.name} was killed"))
        self._death.exception()  # it is read if anything runs
        self._death = asyncio.get_running_loop().create_future()

    def come_back(self) -> None:
        self.is_ready, self.is_coming_back = True, False

    @property
    def death(self) -> asyncio.Future[None]:
        return self._death


class CountingModel:
    """Says 0, 1, 2, one number a token, up to the request's `max_tokens`."""

    def __init__(self, worker: CountingWorker) -> None:
        self._worker = worker

    @property
    def info(self) -> ModelInfo:
        return self._worker.info

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        worker, death = self._worker, self._worker.death
        worker.asked.append(request)
        worker.num_running += 1
        try:
            if not worker.is_ready:
                raise NotReadyError("no worker", retry_after=1.0)
            after, fault = worker.faults.pop(0) if worker.faults else (-1, None)
            start = len(request.answered[0].token_ids) if request.answered else 0  # type: ignore[union-attr]
            end = request.sampling.max_tokens or LENGTH
            for number in range(start, end):
                if fault is not None and number - start == after:
                    raise fault
                await self._turn(worker, death, request)
                yield Chunk(0, f"{number} ", [number])
            yield Chunk(
                0,
                "",
                [],
                finish_reason="length",
                usage=Usage(1, end),
                timing=Timing(0.0, 0.0, 0.0, 1),
            )
        finally:
            worker.num_running -= 1

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        if self._worker.faults:
            raise self._worker.faults.pop(0)[1]
        return [len(prompt) if isinstance(prompt, str) else 0, int(add_special_tokens)]

    async def detokenize(self, token_ids: list[int]) -> str:
        return str(token_ids)

    async def _turn(
        self, worker: CountingWorker, death: asyncio.Future[None], request: GenerationRequest
    ) -> None:
        """Let others have a turn, and die if it is time to."""
        await asyncio.sleep(0)
        if request.prompt in worker.killers:
            worker.on_kill()
        if death.done():
            death.result()
