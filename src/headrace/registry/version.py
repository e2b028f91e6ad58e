"""One version of a model: its workers, its state, its health and who uses it.

Knows its own life only: which version is active, and what is remembered, is the registry's.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from headrace.errors import HeadraceError
from headrace.generation import LanguageModel, ModelInfo
from headrace.registry.health.check import probe_all, prove
from headrace.registry.health.probe import Probe
from headrace.registry.health.score import Health, is_fault
from headrace.registry.lifecycle import Lifecycle, State
from headrace.registry.refusal import UNLOADED_RETRY_AFTER, refusal
from headrace.registry.spec import ModelSpec
from headrace.registry.status import ModelStatus
from headrace.registry.usage import Usage
from headrace.registry.workers.patience import Patience
from headrace.registry.workers.replicas import Replicas
from headrace.registry.workers.supervisor import Supervisor

NewWorker = Callable[[ModelSpec, int, Callable[[Supervisor], None]], Supervisor]
"""Makes the n-th worker, from 0, not started yet; it calls the function when its status changes."""


class Version:
    """Counts its leases, so that its workers end when nobody needs them any more."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        state: State = "loading",
        is_declared: bool = False,
        reason: str | None = None,
        new_worker: NewWorker,
        patience: Patience,
        on_change: Callable[["Version"], None],
        on_unused: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.is_declared = is_declared
        self.lifecycle = Lifecycle(spec.model_id, state)
        self.health = Health()
        self.reason = reason
        self.failure: HeadraceError | None = None
        self.checked_at = time.monotonic()
        self.started_at = time.time()
        self._loaded_at: float | None = None
        self._new_worker = new_worker
        self._patience = patience
        self._on_change = on_change
        self._usage = Usage(on_unused)
        self._replicas = Replicas()
        self._is_proven = False
        self._proven_at = 0.0  # monotonic
        self._info: ModelInfo | None = None
        self.is_open = True
        """False while its model lets requests wait."""
        self._is_ending = False
        self._ending: asyncio.Task[None] | None = None
        self.measured: int | None = None
        """Its footprint when its workers were last taken down with all of them well."""

    @property
    def model_id(self) -> str:
        return self.spec.model_id

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def has_workers(self) -> bool:
        return bool(self._replicas)

    @property
    def is_proven(self) -> bool:
        """Whether it has workers, and all that it has now have passed the health check."""
        return self._is_proven

    @property
    def is_idle(self) -> bool:
        """Whether it has workers that nobody uses."""
        return self._is_proven and self._usage.count == 0

    @property
    def can_wake(self) -> bool:
        """Whether it has no workers for lack of use alone."""
        return not self._replicas and self.state in ("ready", "active")

    @property
    def num_leases(self) -> int:
        return self._usage.count

    @property
    def last_used(self) -> float:
        """Monotonic time at which the last lease, or else the last load, ended."""
        return max(self._usage.last_used, self._proven_at)

    @property
    def pids(self) -> tuple[int, ...]:
        return self._replicas.pids

    @property
    def mapped_bytes(self) -> int:
        """Of its weights, as far as they are files in memory."""
        return self._replicas.mapped_bytes

    @property
    def footprint(self) -> int:
        """Bytes that are free when its workers have ended."""
        return self._replicas.footprint

    @property
    def info(self) -> ModelInfo | None:
        return self._info

    @property
    def is_answering(self) -> bool:
        return self._is_proven and self._replicas.is_answering

    @property
    def refusal(self) -> HeadraceError | None:
        """Why a new request cannot be taken now; a short wait for a restarting worker is none."""
        if self._is_proven and self.is_open:
            return self._replicas.refusal
        return refusal(
            self.model_id,
            state=self.state,
            is_open=self.is_open,
            has_workers=self.has_workers,
            of_workers=self._replicas.refusal if self.has_workers else None,
        )

    def retry_after_stop(self, ends_at: float) -> float:
        """Seconds until a server that is gone at `ends_at` and starts again could answer."""
        return self._replicas.retry_after_stop(ends_at, default=UNLOADED_RETRY_AFTER)

    def status(self) -> ModelStatus:
        return ModelStatus(
            model_id=self.model_id,
            name=self.spec.name,
            version=self.spec.version,
            state=self.state,
            is_answering=self.is_answering,
            progress=self._replicas.progress,
            phase=self._phase,
            reason=self.reason or self._replicas.reason,
            health_score=self.health.score(time.monotonic()),
            replicas=self.spec.replicas,
            pids=self.pids,
            restarts=self._replicas.restarts,
            memory_bytes=self._replicas.memory_bytes,
            started_at=self.started_at,
            loaded_at=self._loaded_at,
            num_leases=self._usage.count,
            info=self._info,
            stats=self._replicas.stats,
        )

    # Loading and ending

    def move(self, state: State) -> None:
        self.lifecycle.move(state)
        self._on_change(self)

    def fail(self, error: HeadraceError) -> None:
        self.failure, self.reason = error, error.message
        if self.lifecycle.can_move("failed"):  # not one that a rollback tried to bring back
            self.move("failed")

    async def bring_up(self) -> None:
        """Start the workers and prove that they answer; take them down if this raises.

        Moves a version that is loaded for the first time on to ready.
        """
        assert not self._replicas, "it is brought up once"
        self.started_at = time.time()
        numbers = range(self.spec.replicas)
        self._replicas = Replicas(
            [self._new_worker(self.spec, number, self._worker_changed) for number in numbers]
        )
        await self._replicas.start()
        if self.state == "loading":
            self.move("health_check")
        await prove(self.model_id, self.check_health, delay=self._patience.first_delay)
        self._is_proven = True
        self._loaded_at, self._proven_at = time.time(), time.monotonic()
        self.reason = None
        if self.state == "health_check":
            self.move("ready")
        else:
            self._on_change(self)

    def take_down(self, drain_timeout: float) -> asyncio.Task[None]:
        """End the workers; at once there are none to use, and at the task's end none at all."""
        if self._is_proven and self._replicas.is_measured:
            self.measured = self._replicas.footprint
        replicas, self._replicas, self._is_proven = self._replicas, Replicas(), False
        if self._ending is None or self._ending.done():
            self._is_ending = bool(replicas)
            work = self._end(replicas, drain_timeout)
            self._ending = asyncio.create_task(work, name=f"end-{self.model_id}")
        return self._ending

    async def ended(self) -> None:
        """Wait until none of the workers that were taken down is left."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, replicas: Replicas, drain_timeout: float) -> None:
        if replicas:
            await replicas.stop(drain_timeout)
            self._is_ending = False
            if self.state != "loading":  # else what comes next tells more
                self._on_change(self)

    async def check_health(self) -> Probe | None:
        """Probe every worker and remember, and return, the worst of what they said.

        None when they were taken down meanwhile, so that they could not but fail.
        """
        replicas, timeout = self._replicas, self._patience.probe
        assert replicas, "only a version with workers is probed"
        found = await probe_all(replicas.models, self.spec.golden, timeout=timeout)
        if replicas is not self._replicas:
            return None
        self.checked_at = time.monotonic()
        self.health.note_probe(found, self.checked_at)
        self._on_change(self)
        return found

    # Use

    @contextmanager
    def lease(self) -> Iterator[LanguageModel]:
        """Use the least busy worker for a request, whose end counts for the health."""
        failure: BaseException | None = None
        with self.hold():
            try:
                yield self._replicas.least_busy()
            except BaseException as exc:
                failure = exc
                raise
            finally:
                if failure is None or is_fault(failure):
                    now = time.monotonic()
                    self.health.note_request(failed=failure is not None, now=now)

    def hold(self) -> AbstractContextManager[None]:
        """The version keeps its workers at least as long."""
        return self._usage.hold()

    async def unused(self) -> None:
        """Wait until nobody uses it."""
        await self._usage.unused()

    def _worker_changed(self, worker: Supervisor) -> None:
        self._info = worker.status.info or self._info
        self._on_change(self)

    @property
    def _phase(self) -> str:
        if self.state == "unloading" or self._is_ending:
            return "draining"
        if not self._replicas:
            return _PHASE_WITHOUT_WORKERS[self.state]
        is_settled = self._is_proven or self._replicas.has_failed
        return self._replicas.phase or ("" if is_settled else "warming")


_PHASE_WITHOUT_WORKERS: dict[State, str] = {
    "loading": "queued",
    "health_check": "queued",
    "ready": "idle",
    "active": "idle",
    "deprecated": "cold",
    "failed": "",
}
