"""The workers of one version, taken together. Knows nothing of the version's state."""

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.executors.memory import mapped_bytes
from headrace.generation import EngineStats, LanguageModel
from headrace.registry.waiting import all_of
from headrace.registry.workers.supervisor import Supervisor


class Replicas:
    """Started and ended together; there may be none."""

    def __init__(self, workers: Sequence[Supervisor] = ()) -> None:
        self._workers = workers

    def __bool__(self) -> bool:
        return bool(self._workers)

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    async def settled(self) -> None:
        """Wait until all have loaded; raises why the first to fail did."""
        await all_of(worker.settled() for worker in self._workers)

    async def stop(self, drain_timeout: float) -> None:
        await asyncio.gather(*(worker.stop(drain_timeout) for worker in self._workers))

    @property
    def models(self) -> list[LanguageModel]:
        return [worker.model for worker in self._workers]

    def retry_after_stop(self, ends_at: float, default: float) -> float:
        return max((w.retry_after_stop(ends_at) for w in self._workers), default=default)

    # As they are now

    @property
    def has_failed(self) -> bool:
        return any(worker.status.state == "failed" for worker in self._workers)

    @property
    def phase(self) -> str:
        """That of the worker which is furthest behind; empty when none tells one."""
        each = [w.status for w in self._workers if w.status.phase]
        return min(((status.progress, status.phase) for status in each), default=(0.0, ""))[1]

    @property
    def progress(self) -> float:
        return min((worker.status.progress for worker in self._workers), default=0.0)

    @property
    def reason(self) -> str | None:
        return next((w.status.reason for w in self._workers if w.status.reason), None)

    @property
    def restarts(self) -> int:
        return sum(worker.status.restarts for worker in self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(w.status.pid for w in self._workers if w.status.pid is not None)

    @property
    def stats(self) -> EngineStats | None:
        stats = [w.status.stats for w in self._workers if w.status.stats is not None]
        if not stats:
            return None
        fields = zip(*map(msgspec.structs.astuple, stats), strict=True)
        return EngineStats(*(sum(each) for each in fields))

    # Memory

    @property
    def memory_bytes(self) -> int:
        """What the processes hold, with what several of them share counted for each."""
        return sum(worker.status.memory_bytes for worker in self._workers)

    @property
    def mapped_bytes(self) -> int:
        """Of the weights, which all of them map from one file."""
        return max(map(mapped_bytes, self.pids), default=0)

    @property
    def footprint(self) -> int:
        """Bytes that are free when all have ended."""
        mapped = [mapped_bytes(pid) for pid in self.pids]
        return max(0, self.memory_bytes - sum(mapped) + max(mapped, default=0))

    @property
    def is_measured(self) -> bool:
        """Whether all serve and have told what they hold."""
        each = [worker.status for worker in self._workers]
        return all(status.state == "ready" and status.memory_bytes for status in each)
