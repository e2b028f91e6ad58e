"""Runs the plan: every system on the same prompts, one after another, round after round.

All systems stay up and idle while one is measured, so that a slow minute of the machine falls on
all of them alike.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.load import Load, Run
from harness.probe import HealthProbe
from harness.processes import MemoryPeak, tree_cpu_seconds
from harness.prompts import Prompts
from harness.results import Level, Plan, SystemResult
from harness.summary import Percentiles, summarize
from harness.systems import Server, StartError, System

PROMPTS_PER_USER = 8  # the most one user sends in one run
EXTRA_PROMPTS = 32  # so that a single fast user is busy for its seconds
WARM_UP_TOKENS = 8

Say = Callable[[str], None]


@dataclass(slots=True)
class Observed:
    """One run and what the processes used during it, in CPU seconds."""

    run: Run
    wall: float
    client_cpu: float
    own_cpu: float
    idle_cpu: float
    health: Percentiles | None
    num_missed: int


@dataclass(slots=True)
class Subject:
    """One system and all that was seen of it."""

    system: System
    start_seconds: list[float] = field(default_factory=list)
    memory: MemoryPeak | None = None
    observed: dict[int, list[Observed]] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return tree_cpu_seconds(self.system.pid) if self.system.pid else 0.0

    async def start(self) -> None:
        begun = time.monotonic()
        await self.system.start()
        self.start_seconds.append(time.monotonic() - begun)

    async def close(self) -> None:
        if self.memory is not None:
            await self.memory.close()
        await self.system.close()

    def result(self, plan: Plan) -> SystemResult:
        return SystemResult(
            name=self.system.name,
            start_seconds=self.start_seconds if self.system.pid else [],
            peak_memory=self.memory.bytes if self.memory else None,
            levels=[_level(number, seen, plan) for number, seen in self.observed.items()],
        )


async def measure(
    systems: Sequence[System], plan: Plan, prompts: Prompts, say: Say
) -> tuple[list[SystemResult], dict[str, str]]:
    """Measure all systems by the plan; also returns why one could not be started, by name.

    Whatever was started is stopped, also after a failure.
    """
    subjects = [Subject(system) for system in systems]
    try:
        skipped = await _start_all(subjects, plan, say)
        subjects = [subject for subject in subjects if subject.system.name not in skipped]
        await _warm_up(subjects, plan, prompts)
        for concurrency, load, order in _turns(subjects, plan, prompts):
            for subject in order:
                seen = await _observe(subject, subjects, load)
                subject.observed.setdefault(concurrency, []).append(seen)
                rate = _level(concurrency, [seen], plan).summary.tokens_per_second
                say(f"{subject.system.name} at {concurrency}: {rate:.0f} tokens/s")
        return [subject.result(plan) for subject in subjects], skipped
    finally:
        await asyncio.gather(*(subject.close() for subject in subjects))


async def _start_all(subjects: Sequence[Subject], plan: Plan, say: Say) -> dict[str, str]:
    """Start all as often as planned; the last start stays. Returns who did not come up, and why."""
    skipped: dict[str, str] = {}
    for again in range(plan.starts):
        for subject in subjects:
            name = subject.system.name
            if name in skipped:
                continue
            try:
                await subject.start()
            except StartError as error:
                await subject.close()
                skipped[name] = str(error)
                say(f"{name} is skipped: {error}")
                continue
            say(f"{name} answered after {subject.start_seconds[-1]:.1f} s")
            if again < plan.starts - 1:
                await subject.system.close()
            elif subject.system.pid:
                subject.memory = MemoryPeak(subject.system.pid)
    return skipped


async def _warm_up(subjects: Sequence[Subject], plan: Plan, prompts: Prompts) -> None:
    users = max(plan.concurrencies)
    load = Load(prompts.take(0, users), users, WARM_UP_TOKENS, users, 0.0)
    for subject in subjects:
        await subject.system.run(load)


def _turns(
    subjects: list[Subject], plan: Plan, prompts: Prompts
) -> Iterator[tuple[int, Load, list[Subject]]]:
    """Each round's loads on fresh prompts; who goes first changes from round to round."""
    first = max(plan.concurrencies)
    for number in range(plan.rounds):
        turn = number % len(subjects)
        for users in plan.concurrencies:
            count = PROMPTS_PER_USER * users + EXTRA_PROMPTS
            if first + count > len(prompts):
                first = 0
            fresh = prompts.take(first, count)
            first += count
            load = Load(fresh, users, plan.output_tokens, 2 * users, plan.seconds)
            yield users, load, subjects[turn:] + subjects[:turn]


async def _observe(subject: Subject, subjects: Sequence[Subject], load: Load) -> Observed:
    others = [other for other in subjects if other is not subject]
    probe = _probe(subject.system)
    begun, client, own = time.monotonic(), time.process_time(), subject.cpu
    idle = sum(other.cpu for other in others)
    run = await subject.system.run(load)
    return Observed(
        run=run,
        wall=time.monotonic() - begun,
        client_cpu=time.process_time() - client,
        own_cpu=subject.cpu - own,
        idle_cpu=sum(other.cpu for other in others) - idle,
        health=await probe.close() if probe else None,
        num_missed=probe.num_missed if probe else 0,
    )


def _probe(system: System) -> HealthProbe | None:
    if isinstance(system, Server) and system.health_path:
        return HealthProbe(system.url, system.health_path)
    return None


def _level(concurrency: int, seen: Sequence[Observed], plan: Plan) -> Level:
    summary = summarize(
        [one.run for one in seen],
        prompt_tokens=plan.prompt_tokens,
        output_tokens=plan.output_tokens,
    )
    wall = sum(one.wall for one in seen)
    tokens = sum(sample.completion_tokens for one in seen for sample in one.run.samples)
    own_cpu = sum(one.own_cpu for one in seen)
    health = [one.health.p99 for one in seen if one.health and one.health.p99 is not None]
    return Level(
        concurrency=concurrency,
        summary=summary,
        cpu_ms_per_token=own_cpu / tokens * 1e3 if own_cpu and tokens else None,
        client_cpu=sum(one.client_cpu for one in seen) / wall,
        idle_cpu=sum(one.idle_cpu for one in seen) / wall,
        health_p99=max(health, default=None),
        missed_health=sum(one.num_missed for one in seen),
    )
