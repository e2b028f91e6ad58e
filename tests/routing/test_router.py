import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting_worker import LENGTH, CountingWorker, counted
from headrace.endpoints import RoutingConfig
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NoEndpointError,
    NotReadyError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.generation import Answered, Chunk, GenerationRequest, SamplingParams
from headrace.routing.policy import RoutingPolicy
from headrace.routing.router import VersionRouter

QUICK = RoutingPolicy(retry_delay=0.001, max_retry_delay=0.002)


class Routed:
    """A router of two workers, `a` and `b`, and what was said through it."""

    def __init__(self, *workers: CountingWorker, **config: str) -> None:
        self.workers: Sequence[CountingWorker] = workers
        routing = RoutingConfig(**config)  # type: ignore[arg-type]
        self.router = VersionRouter("chat@2", routing, workers, (), policy=QUICK)

    def change(self, worker: CountingWorker, act: Callable[[], None]) -> None:
        act()
        self.router.worker_changed(worker)

    async def say(self, prompt: str = "count", **fields: object) -> str:
        return "".join([chunk.text async for chunk in self.router.generate(ask(prompt, **fields))])

    async def learn_order(self) -> None:
        """Have the first worker be the one whose turn it is."""
        await self.say()
        self.workers = sorted(self.workers, key=lambda worker: len(worker.asked))
        for worker in self.workers:
            worker.asked.clear()

    def check(self) -> None:
        members = self.router._places.members
        members.check(time.monotonic())
        for status in self.router.statuses():
            assert (status.num_in_flight, status.tokens_in_flight) == (0, 0)
        assert not self.router._places.trial.locked()
        assert all(worker.num_running == 0 for worker in self.workers)


def ask(prompt: str = "count", **fields: object) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=LENGTH, temperature=0)
    return GenerationRequest(request_id="r", prompt=prompt, sampling=sampling, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def routing(*names: str, **config: str) -> AsyncIterator[Routed]:
    routed = Routed(*(CountingWorker(name) for name in names), **config)
    if names:
        await routed.router.start()
        await routed.learn_order()
    yield routed
    routed.check()
    await routed.router.close()


async def test_an_answer_says_the_versions_name() -> None:
    async with routing("a") as routed:
        assert routed.router.info.model_id == "chat@2"
        assert await routed.say() == counted()
        assert not routed.router.relays


async def test_requests_are_spread() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        await asyncio.gather(*(routed.say() for _ in range(8)))
        assert [len(worker.asked) for worker in routed.workers] == [4, 4]


# Deaths


async def test_a_stream_goes_on_with_another_worker_at_once() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        first = routed.workers[0]
        stream = routed.router.generate(ask())
        begun = [await anext(stream), await anext(stream)]
        routed.change(first, first.die)
        rest = [chunk async for chunk in stream]
        assert "".join(chunk.text for chunk in (*begun, *rest)) == counted()
        assert routed.router.counts.num_moves == 1
        (resumed,) = routed.workers[1].asked
        assert resumed.answered == (Answered([0, 1], 4),)
        assert resumed.was_accepted


async def test_a_stream_waits_for_the_only_workers_return() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        stream = routed.router.generate(ask())
        begun = await anext(stream)
        routed.change(worker, worker.die)
        assert routed.router.refusal is None
        assert not routed.router.is_answering
        rest = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.01)
        assert not rest.done()
        routed.change(worker, worker.come_back)
        assert begun.text + await rest == counted()


async def test_a_worker_that_will_not_return_is_not_waited_for() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        stream = routed.router.generate(ask())
        await anext(stream)
        waiting = asyncio.create_task(collect(stream))
        routed.change(worker, worker.die)
        await asyncio.sleep(0.01)
        worker.is_coming_back = False
        routed.router.worker_changed(worker)
        with pytest.raises(NotReadyError, match="a is loading") as refusal:
            await waiting
        assert refusal.value.retry_after == 7.0
        with pytest.raises(NotReadyError):
            await routed.say()


async def test_a_request_that_kills_falls_after_three_workers_and_takes_no_other_along() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        worker.killers = {"poison"}

        def kill() -> None:
            routed.change(worker, worker.die)
            asyncio.get_running_loop().call_soon(routed.change, worker, worker.come_back)

        worker.on_kill = kill
        innocents = [asyncio.create_task(routed.say()) for _ in range(4)]
        with pytest.raises(WorkerDiedError, match="3 workers in a row ended with this request"):
            await routed.say("poison")
        assert await asyncio.gather(*innocents) == [counted()] * 4


async def test_suspects_are_tried_one_at_a_time() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        worker.killers = {"poison"}
        on_trial: list[int] = []

        def kill() -> None:
            on_trial.append(worker.num_running)
            routed.change(worker, worker.die)
            asyncio.get_running_loop().call_soon(routed.change, worker, worker.come_back)

        worker.on_kill = kill
        poisons = [routed.say("poison") for _ in range(3)]
        results = await asyncio.gather(*poisons, return_exceptions=True)
        assert [type(each) for each in results] == [WorkerDiedError] * 3
        assert on_trial[-3:] == [1, 1, 1]


async def test_a_seed_is_drawn_once_for_all_workers() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        first, second = routed.workers
        sampling = SamplingParams(max_tokens=LENGTH, temperature=1.0)
        stream = routed.router.generate(
            GenerationRequest(request_id="r", prompt="", sampling=sampling)
        )
        await anext(stream)
        routed.change(first, first.die)
        await collect(stream)
        assert first.asked[0].sampling.seed == second.asked[0].sampling.seed is not None


async def test_a_stream_that_was_begun_elsewhere_keeps_what_it_came_with() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        first, second = routed.workers
        stream = routed.router.generate(ask(answered=(Answered([0, 1], 4),)))
        begun = await anext(stream)
        routed.change(first, first.die)
        assert "0 1 " + begun.text + await collect(stream) == counted()
        assert second.asked[0].answered == (Answered([0, 1, 2], 6),)


async def test_nothing_goes_on_where_migration_is_off() -> None:
    async with routing("a", "b", strategy="round_robin", migration="off") as routed:
        first, _ = routed.workers
        stream = routed.router.generate(ask())
        await anext(stream)
        routed.change(first, first.die)
        with pytest.raises(HeadraceError):
            await collect(stream)
        assert await routed.say() == counted()


# Faults


@pytest.mark.parametrize(
    "fault", [QueueFullError("full", retry_after=1.0), NotReadyError("later"), HeadraceError("bug")]
)
async def test_what_one_refuses_another_answers(fault: HeadraceError) -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        routed.workers[0].faults = [(0, fault)]
        assert await routed.say() == counted()
        assert [len(worker.asked) for worker in routed.workers] == [1, 1]


async def test_a_clients_mistake_is_tried_nowhere_else() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        routed.workers[0].faults = [(0, InvalidRequestError("no"))]
        with pytest.raises(InvalidRequestError):
            await routed.say()
        assert routed.workers[1].asked == []


async def test_an_answer_that_has_begun_is_not_begun_again_after_a_fault() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        routed.workers[0].faults = [(2, DeadlineError("late"))]
        with pytest.raises(DeadlineError):
            await routed.say()
        assert routed.workers[1].asked == []


async def test_a_worker_on_its_own_is_not_left_alone_for_its_faults() -> None:
    async with routing("a") as routed:
        routed.workers[0].faults = [(0, HeadraceError("bug")) for _ in range(30)]
        for _ in range(30):
            with pytest.raises(HeadraceError, match="bug"):
                await routed.say()
        assert await routed.say() == counted()


async def test_a_worker_that_only_fails_is_left_to_its_breaker() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        routed.workers[0].faults = [(0, HeadraceError("bug")) for _ in range(100)]
        for _ in range(60):
            assert await routed.say() == counted()
        assert len(routed.workers[0].asked) == QUICK.failure_threshold
        (status, _) = routed.router.statuses()
        assert (status.breaker, status.reason) == ("open", "bug")


async def test_calls_go_elsewhere_too() -> None:
    async with routing("a", "b", strategy="round_robin") as routed:
        first, second = routed.workers
        first.faults = [(0, HeadraceError("bug"))]
        assert await routed.router.tokenize("four") == [4, 1]
        assert await routed.router.detokenize([1]) == "[1]"
        first.faults = second.faults = [(0, WorkerDiedError("killed"))] * 9
        with pytest.raises(WorkerDiedError):
            await routed.router.tokenize("four")


# Waiting


async def test_who_waits_is_told_at_the_deadline() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        routed.change(worker, worker.die)
        with pytest.raises(DeadlineError):
            await routed.say(deadline=time.monotonic() + 0.02)


async def test_only_as_many_wait_as_a_worker_could_have() -> None:
    async with routing("a") as routed:
        (worker,) = routed.workers
        routed.change(worker, worker.die)
        waiting = [asyncio.create_task(routed.say()) for _ in range(worker.max_in_flight)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as refusal:
            await routed.say()
        assert refusal.value.retry_after is not None
        routed.change(worker, worker.come_back)
        assert await asyncio.gather(*waiting) == [counted()] * worker.max_in_flight


# Clients


async def test_a_fault_of_the_reader_is_the_readers_and_not_the_endpoints() -> None:
    async with routing("a", "b") as routed:

        def take(_chunk: Chunk) -> bool:
            raise BrokenPipeError

        for _ in range(20):
            with pytest.raises(BrokenPipeError):
                await routed.router.generate(ask()).forward(take)
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}
        assert sum(len(worker.asked) for worker in routed.workers) == 20


async def test_a_reader_that_leaves_ends_the_request() -> None:
    async with routing("a") as routed:
        stream = routed.router.generate(ask())
        await anext(stream)
        await stream.aclose()
        routed.check()
        assert await collect(stream) == ""


async def test_a_reader_may_pause() -> None:
    async with routing("a") as routed:
        stream, taken = routed.router.generate(ask()), []

        def take(chunk: Chunk) -> bool:
            taken.append(chunk.text)
            return False

        while not await stream.forward(take):
            pass
        assert "".join(taken) == counted()


async def test_without_endpoints_the_refusal_says_when() -> None:
    async with routing() as routed:
        with pytest.raises(NoEndpointError, match="chat@2") as refusal:
            await routed.say()
        assert refusal.value.retry_after is not None


# Everything at once


@settings(max_examples=60, deadline=None)
@given(
    deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=12),
    strategy=st.sampled_from(["round_robin", "least_load", "consistent_hash", "prefix_affinity"]),
)
def test_answers_are_whole_whatever_dies(deaths: list[tuple[int, int]], strategy: str) -> None:
    asyncio.run(_survive(deaths, strategy))


async def _survive(deaths: list[tuple[int, int]], strategy: str) -> None:
    async with routing("a", "b", "c", strategy=strategy) as routed:
        answers = [asyncio.create_task(routed.say(f"{n}", user=f"{n}")) for n in range(12)]
        for victim, turns in deaths:
            worker = routed.workers[victim]
            routed.change(worker, worker.die)
            for _ in range(turns):
                await asyncio.sleep(0)
            routed.change(worker, worker.come_back)
        results = await asyncio.gather(*answers, return_exceptions=True)
        wrong = [each for each in results if each != counted()]
        assert all(isinstance(each, WorkerDiedError) for each in wrong)
        assert not wrong or len(deaths) >= 3


async def collect(stream: AsyncIterator[Chunk]) -> str:
    return "".join([chunk.text async for chunk in stream])
