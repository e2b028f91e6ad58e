"""The engine behind an event loop, with its real thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine.paged_executor import ByteTokenizer, PagedExecutor, greedy_answer
from headrace.engine.async_engine import AsyncEngine
from headrace.engine.config import EngineConfig
from headrace.engine.delivery import Delivery
from headrace.engine.engine import Engine
from headrace.engine.stream import ChunkStreams
from headrace.errors import (
    ContextLengthError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    QueueFullError,
)
from headrace.executors.executor import Batch, Output
from headrace.generation import Chunk, EngineStats, GenerationRequest, Prompt, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)


class GatedExecutor(PagedExecutor):
    """Waits before each step until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def execute(self, batch: Batch) -> Output:
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return super().execute(batch)


class Rig:
    def __init__(self, config: EngineConfig, tokenizer: ByteTokenizer) -> None:
        self.executor = GatedExecutor()
        self.streams = ChunkStreams()
        self.steps: list[list[Delivery]] = []
        self.stats = EngineStats()
        self.loop = asyncio.get_running_loop()
        self.delivering_threads: set[int] = set()
        self.engine = AsyncEngine(
            Engine(self.executor, tokenizer, config), tokenizer, self._deliver
        )

    def _deliver(self, deliveries: list[Delivery], stats: EngineStats) -> None:
        self.delivering_threads.add(threading.get_ident())
        self.loop.call_soon_threadsafe(self._take, deliveries, stats)

    def _take(self, deliveries: list[Delivery], stats: EngineStats) -> None:
        self.steps.append(deliveries)
        self.stats = stats
        self.streams.dispatch(deliveries)

    async def generate(
        self, request_id: str, prompt: Prompt, sampling: SamplingParams = GREEDY
    ) -> list[Chunk]:
        stream = self.streams.open(request_id, sampling.n)
        try:
            await self.add(request_id, prompt, sampling)
            return [chunk async for chunk in stream]
        finally:
            stream.close()

    async def add(self, request_id: str, prompt: Prompt, sampling: SamplingParams = GREEDY) -> None:
        request = GenerationRequest(request_id=request_id, prompt=prompt, sampling=sampling)
        await self.engine.add(request)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the thread's progress has no event of its own
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    config: EngineConfig | None = None, tokenizer: ByteTokenizer | None = None
) -> AsyncIterator[Rig]:
    rig = Rig(config or EngineConfig(), tokenizer or ByteTokenizer())
    try:
        yield rig
    finally:
        rig.executor.gate.set()
        await rig.engine.close()


def token_ids(chunks: list[Chunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


async def test_many_requests_at_once_get_their_own_answers() -> None:
    async with running() as rig:
        prompts = {str(number): f"prompt {number % 7}" for number in range(40)}
        answers = await asyncio.gather(*(rig.generate(*item) for item in prompts.items()))
        for prompt, chunks in zip(prompts.values(), answers, strict=True):
            assert token_ids(chunks) == greedy_answer(list(prompt.encode()), 12)
        await rig.engine.drain()
        assert rig.engine.stats.num_free_blocks == rig.executor.num_blocks
        assert rig.engine.stats.num_running == rig.engine.stats.num_waiting == 0
        assert not rig.engine.has_work


async def test_a_step_of_many_sequences_is_one_delivery() -> None:
    async with running() as rig:
        rig.executor.gate.clear()
        for number in range(8):
            await rig.add(str(number), [number])
        rig.executor.gate.set()
        await rig.engine.drain()
        assert len(rig.steps) == rig.engine.stats.num_steps
        assert max(len({d.request_id for d in step}) for step in rig.steps) > 1


async def test_tokens_are_delivered_without_waking_the_loop() -> None:
    async with running() as rig:
        await rig.generate("a", "hello")
        assert threading.get_ident() not in rig.delivering_threads
        assert len(rig.delivering_threads) == 1


async def test_a_drained_engine_has_delivered_everything() -> None:
    async with running() as rig:
        for number in range(8):
            await rig.add(str(number), [number])
        await rig.engine.drain()
        last = [d.chunk for step in rig.steps for d in step if d.chunk and d.chunk.finish_reason]
        assert len(last) == 8


async def test_an_abort_frees_everything_and_delivers_nothing_more() -> None:
    async with running() as rig:
        await rig.add("a", "hello", SamplingParams(max_tokens=250, ignore_eos=True, n=2))
        await rig.until(lambda: rig.stats.num_generated_tokens > 3)
        rig.engine.abort("a")
        await rig.until(lambda: not rig.engine.has_work)
        assert rig.stats.num_free_blocks == rig.executor.num_blocks
        assert rig.stats.num_aborted == 1


LONG = "hello".rjust(10_000)


class SlowTokenizer(ByteTokenizer):
    """Waits for its gate, unless a prompt is short."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_waiting = threading.Event()

    def encode(self, prompt: Prompt, **_options: object) -> list[int]:
        assert isinstance(prompt, str)
        if prompt is LONG:
            self.is_waiting.set()
            self.gate.wait()
        return super().encode(prompt.strip())


async def test_a_request_aborted_while_it_is_tokenized_never_starts() -> None:
    tokenizer = SlowTokenizer()
    async with running(tokenizer=tokenizer) as rig:
        adding = asyncio.create_task(rig.add("a", LONG))
        await rig.until(tokenizer.is_waiting.is_set)
        assert not rig.engine.has_work
        rig.engine.abort("a")
        tokenizer.gate.set()
        await adding
        assert not rig.engine.has_work
        assert rig.engine.stats.num_steps == 0


async def test_a_short_prompt_does_not_wait_for_a_long_one_to_be_tokenized() -> None:
    tokenizer = SlowTokenizer()
    async with running(tokenizer=tokenizer) as rig:
        adding = [asyncio.create_task(rig.add(str(number), LONG)) for number in range(4)]
        await rig.until(tokenizer.is_waiting.is_set)
        assert token_ids(await rig.generate("a", "hi")) == greedy_answer(list(b"hi"), 12)
        tokenizer.gate.set()
        await asyncio.gather(*adding)


async def test_an_add_that_is_cancelled_gives_its_place_back() -> None:
    tokenizer = SlowTokenizer()
    async with running(EngineConfig(max_queued_requests=1), tokenizer) as rig:
        adding = asyncio.create_task(rig.add("a", LONG))
        await rig.until(tokenizer.is_waiting.is_set)
        assert not rig.engine.has_work
        with pytest.raises(QueueFullError):
            await rig.add("b", "hello")
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        tokenizer.gate.set()
        assert token_ids(await rig.generate("a", "hi")) == greedy_answer(list(b"hi"), 12)


async def test_a_request_that_has_started_leaves_its_place_before_the_next_is_judged() -> None:
    async with running(EngineConfig(max_queued_requests=1)) as rig:
        endless = SamplingParams(max_tokens=200, ignore_eos=True)
        for count in range(1, 4):
            await rig.add(str(count), "hello", endless)
            await rig.until(lambda count=count: rig.stats.num_prompt_tokens == 5 * count)


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    async with running(EngineConfig(max_queued_requests=2, max_num_seqs=1)) as rig:
        rig.executor.gate.clear()
        for number in range(2):
            await rig.add(str(number), "x")
        with pytest.raises(QueueFullError) as caught:
            await rig.add("more", "x")
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 60
        rig.executor.gate.set()
        await rig.until(lambda: not rig.engine.has_work)
        assert await rig.generate("more", "x")


async def test_a_full_queue_takes_what_another_worker_s_queue_had_taken() -> None:
    async with running(EngineConfig(max_queued_requests=1, max_num_seqs=1)) as rig:
        rig.executor.gate.clear()
        await rig.add("first", "x")
        known = GenerationRequest(
            request_id="known", prompt="hi", sampling=GREEDY, was_accepted=True
        )
        await rig.engine.add(known)
        with pytest.raises(QueueFullError):
            await rig.add("more", "x")
        stream = rig.streams.open("known")
        rig.executor.gate.set()
        assert token_ids([chunk async for chunk in stream]) == greedy_answer(list(b"hi"), 12)


async def test_requests_that_cannot_be_served_are_refused_before_they_wait() -> None:
    async with running() as rig:
        with pytest.raises(ContextLengthError) as caught:
            await rig.add("a", "x" * 600)
        assert caught.value.param == "prompt"
        assert "600" in caught.value.message
        with pytest.raises(InvalidRequestError, match="top_p"):
            await rig.add("a", "x", SamplingParams(top_p=2))
        with pytest.raises(InvalidRequestError, match="no tokens"):
            await rig.add("a", "")
        assert not rig.engine.has_work


async def test_a_request_id_in_progress_is_refused_and_may_be_used_again_after() -> None:
    async with running() as rig:
        rig.executor.gate.clear()
        await rig.add("a", "x")
        with pytest.raises(InvalidRequestError, match="already in progress"):
            await rig.add("a", "x")
        rig.executor.gate.set()
        await rig.until(lambda: not rig.engine.has_work)
        assert await rig.generate("a", "x")


async def test_draining_refuses_new_requests_and_completes_the_accepted() -> None:
    async with running(EngineConfig(max_num_seqs=1)) as rig:
        rig.executor.gate.clear()
        answers = [asyncio.create_task(rig.generate(str(n), [n])) for n in range(4)]
        await rig.until(lambda: len(rig.streams) == 4)
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(rig.engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(DrainingError):
            await rig.add("late", "x")
        assert not draining.done()
        rig.executor.gate.set()
        await draining
        for number, answer in enumerate(answers):
            assert token_ids(await answer) == greedy_answer([number], 12)


async def test_closing_ends_the_thread_and_answers_what_is_unfinished() -> None:
    async with running() as rig:
        answer = asyncio.create_task(
            rig.generate("a", "x", SamplingParams(max_tokens=250, ignore_eos=True))
        )
        await rig.until(lambda: rig.engine.stats.num_steps > 2)
        await rig.engine.close()
        with pytest.raises(DrainingError):
            await answer
        assert not any(thread.name == "headrace-engine" for thread in threading.enumerate())
        with pytest.raises(DrainingError):
            await rig.add("b", "x")


async def test_a_fault_of_the_engine_answers_everyone_and_is_shown() -> None:
    async with running() as rig:
        rig.executor.gate.clear()
        answers = [asyncio.create_task(rig.generate(str(n), [n])) for n in range(3)]
        await rig.until(lambda: len(rig.streams) == 3)
        rig.executor.failure = RuntimeError("the device is gone")
        assert rig.engine.fault is None
        rig.executor.gate.set()
        for answer in answers:
            with pytest.raises(HeadraceError) as caught:
                await answer
            assert caught.value.code == "internal_error"
        assert await rig.engine.wait_for_fault() is rig.executor.failure
        assert rig.engine.fault is rig.executor.failure
        assert not rig.engine.has_work
        with pytest.raises(HeadraceError, match="has failed"):
            await rig.add("b", "x")


async def test_text_becomes_tokens_and_back() -> None:
    async with running() as rig:
        ids = await rig.engine.tokenize("héllo")
        assert await rig.engine.detokenize(ids) == "héllo"
