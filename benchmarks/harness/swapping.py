"""Swaps, rolls back, loads and unloads versions under load, phase after phase."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from harness.baseline import capacity, texts_alone
from harness.client import CompletionClient, HttpClient
from harness.open_loop import Answer, open_loop, poisson
from harness.peers import MODEL
from harness.processes import rss, tree_rss
from harness.prompts import Prompts
from harness.swap_results import STEADY, Found, Phase, Texts, milliseconds, phase
from harness.systems import Server
from harness.trend import trend
from harness.versions import Versions

NUM_PROMPTS = 64
REPRODUCIBLE = "native"  # executors whose answers are the same in any batch
TIMEOUT = 60.0  # seconds; an answer that takes longer has failed


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`share` is that of the capacity; `steady`, `interval` and `capacity_seconds` are seconds."""

    prompts: Prompts
    output_tokens: int
    share: float
    warm_up: int
    swaps: int
    interval: float
    steady: float
    loads: int
    capacity_seconds: float
    seed: int


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A server whose only version, 1, has the first of the precisions; how others are loaded."""

    server: Server
    source: str
    engine: dict[str, Any]
    precisions: list[str]


async def measure(subject: Subject, plan: Plan) -> Found:
    http = HttpClient(subject.server.url, timeout=TIMEOUT)
    try:
        await subject.server.start()
        return await Swapping(subject, plan, http).run()
    finally:
        http.close()
        await subject.server.close()


class Swapping:
    """One run from the first load to the last."""

    def __init__(self, subject: Subject, plan: Plan, http: HttpClient) -> None:
        self._subject = subject
        self._plan = plan
        self._http = http
        self._versions = Versions(http, MODEL)
        self._client = CompletionClient(http, MODEL)
        self._clients = [CompletionClient(http, _id(version)) for version in (1, 2)]
        self._prompts = plan.prompts.take(0, NUM_PROMPTS)
        self._texts: list[list[str]] | None = None  # of both precisions, where they tell anything
        self._gaps: Iterator[float] = iter(())
        self._jitter = random.Random(plan.seed)
        self._memory: list[tuple[int, int]] = []
        self._load_memory: list[int] = []

    async def run(self) -> Found:
        await self._load(2)
        self._texts = await texts_alone(self._clients, self._prompts, self._plan.output_tokens)
        executor = await self._executor()
        capacities = [await self._capacity(client) for client in self._clients]
        rate = self._plan.share * min(capacities)
        await self._fill_history()
        at_rest = self._versions.take_moves()
        self._gaps = poisson(rate, self._plan.seed)
        before = await self._steady()
        self._versions.take_moves()
        swapping = await self._answers(self._swap_back_and_forth())
        under_load = self._versions.take_moves()
        after = await self._steady()
        loads = await self._answers(self._replace()) if self._plan.loads else []
        return Found(
            executor=executor,
            num_telling=sum(a != b for a, b in zip(*self._texts, strict=True))
            if self._texts
            else 0,
            capacities=capacities,
            rate=rate,
            phases=[
                self._phase("steady, before", before),
                self._phase("swapping", swapping),
                self._phase("steady, after", after),
                self._phase(STEADY, [*before, *after]),
                self._phase("replacing", loads),
                self._phase("replacing, while one loads", self._while_loading(loads)),
            ],
            moves={"at rest": milliseconds(at_rest), "under load": milliseconds(under_load)},
            num_moves=len(self._memory),
            api_memory=trend([api for api, _ in self._memory]),
            worker_memory=trend([workers for _, workers in self._memory]),
            load_seconds=[last - first for first, last in self._versions.loads[1:]],
            load_memory=self._load_memory,
        )

    # Phases

    async def _fill_history(self) -> None:
        """Swap until the history, and the database's cache of it, are as large as they get."""
        for _ in range(self._plan.warm_up // 2):
            await self._versions.swap(2)
            await self._versions.rollback(1)

    async def _steady(self) -> list[Answer]:
        """Half of it on each version, since they may differ in speed."""
        answers = await self._answers(asyncio.sleep(self._plan.steady / 2))
        await self._versions.swap(2)
        answers += await self._answers(asyncio.sleep(self._plan.steady / 2))
        await self._versions.rollback(1)
        return answers

    async def _swap_back_and_forth(self) -> None:
        for number in range(self._plan.swaps):
            await self._pause()
            if number % 2 == 0:
                await self._versions.swap(2)
            else:
                await self._versions.rollback(1)
            self._memory.append(self._resident())
        if self._plan.swaps % 2:
            await self._versions.rollback(1)

    async def _replace(self) -> None:
        """Each version by the next, with nothing else in memory."""
        await self._versions.unload(2)
        self._load_memory.append(sum(self._resident()))
        for version in range(3, 3 + self._plan.loads):
            await self._load(version)
            await self._versions.swap(version)
            await self._pause()
            await self._versions.unload(1 if version == 3 else version - 1)
            self._load_memory.append(sum(self._resident()))

    # Parts

    async def _load(self, version: int) -> None:
        engine = {**self._subject.engine, "precision": self._precision(version)}
        await self._versions.load(version, self._subject.source, engine)

    def _precision(self, version: int) -> str:
        return self._subject.precisions[(version - 1) % 2]

    async def _executor(self) -> str:
        """Of both versions; without a reproducible one, texts tell nothing."""
        executors = {await self._versions.executor(version) for version in (1, 2)}
        if not all(each.startswith(REPRODUCIBLE) for each in executors):
            self._texts = None
        return " and ".join(sorted(executors))

    async def _capacity(self, client: CompletionClient) -> float:
        plan = self._plan
        return await capacity(client, self._prompts, plan.output_tokens, plan.capacity_seconds)

    async def _answers(self, during: Coroutine[Any, Any, None]) -> list[Answer]:
        def send(number: int) -> Coroutine[Any, Any, Any]:
            return self._client.complete(self._prompts[number], self._plan.output_tokens)

        return await open_loop(send, self._gaps, NUM_PROMPTS, during)

    def _phase(self, name: str, answers: Sequence[Answer]) -> Phase:
        timeline = self._versions.timeline
        return phase(name, answers, self._plan.output_tokens, timeline, self._expected())

    def _expected(self) -> Texts | None:
        """Of every version there has been: precisions took turns."""
        if self._texts is None:
            return None
        return {_id(v): self._texts[(v - 1) % 2] for v in range(1, 3 + self._plan.loads)}

    def _while_loading(self, answers: Sequence[Answer]) -> list[Answer]:
        loads = self._versions.loads
        return [a for a in answers if any(first <= a.due <= last for first, last in loads)]

    async def _pause(self) -> None:
        """Never in step with anything that the server does by the clock."""
        await asyncio.sleep(self._plan.interval * self._jitter.uniform(0.5, 1.5))

    def _resident(self) -> tuple[int, int]:
        """Bytes of the api process, and of all workers."""
        pid = self._subject.server.pid
        assert pid is not None, "it was started here"
        api = rss(pid)
        return api, tree_rss(pid) - api


def _id(version: int) -> str:
    return f"{MODEL}@{version}"
