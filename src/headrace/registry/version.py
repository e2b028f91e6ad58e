"""One version of a model: its workers, its state, its health and who uses it.

Knows its own life only: which version is active, and what is remembered, is the registry's.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from headrace.endpoints import NewRouter, Router, RoutingCounts
from headrace.errors import HeadraceError
from headrace.generation import ModelInfo
from headrace.registry.health.check import probe_all, probe_golden, prove
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
        new_router: NewRouter,
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
        self._new_router = new_router
        self._patience = patience
        self._on_change = on_change
        self._usage = Usage(on_unused)
        self._replicas = Replicas()
        self._router: Router | None = None
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
    def is_up(self) -> bool:
        """Whether it has endpoints, workers or upstreams, or they are on their way."""
        return self._router is not None or bool(self._replicas)

    @property
    def is_proven(self) -> bool:
        """Whether it has endpoints, and all that it has now have passed the health check."""
        return self._is_proven

    @property
    def is_idle(self) -> bool:
        """Whether it has endpoints that nobody uses."""
        return self._is_proven and self._usage.count == 0

    @property
    def can_wake(self) -> bool:
        """Whether it has no endpoints for lack of use alone."""
        return not self.is_up and self.state in ("ready", "active")

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
        return self._is_proven and self._router is not None and self._router.is_answering

    @property
    def refusal(self) -> HeadraceError | None:
        """Why a new request cannot be taken now; a short wait for a restarting worker is none."""
        if self._router is not None and self._is_proven and self.is_open:
            return self._router.refusal
        return refusal(
            self.model_id,
            state=self.state,
            is_open=self.is_open,
            is_up=self.is_up,
            of_endpoints=None if self._router is None else self._router.refusal,
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
            progress=self._replicas.progress if self._replicas else float(self._is_proven),
            phase=self._phase,
            reason=self.reason or self._replicas.reason,
            health_score=self.health.score(time.monotonic()),
            replicas=self.spec.replicas if self.spec.has_workers else 0,
            pids=self.pids,
            restarts=self._replicas.restarts,
            memory_bytes=self._replicas.memory_bytes,
            started_at=self.started_at,
            loaded_at=self._loaded_at,
            num_leases=self._usage.count,
            info=self._info,
            stats=self._replicas.stats,
            endpoints=() if self._router is None else tuple(self._router.statuses()),
            routing=RoutingCounts() if self._router is None else self._router.counts,
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
        """Start the workers, reach the upstreams, prove that they answer; undo it if this raises.

        Moves a version that is loaded for the first time on to ready.
        """
        assert not self.is_up, "it is brought up once"
        self.started_at = time.time()
        spec = self.spec
        workers = self._new_workers()
        self._replicas = replicas = Replicas(workers)
        replicas.start()
        self._router = router = await self._new_router(
            spec.model_id, spec.routing, workers, spec.upstreams, self._endpoint_changed
        )
        await replicas.settled()
        await router.start()
        self._info = router.info
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

    def _new_workers(self) -> list[Supervisor]:
        numbers = range(self.spec.replicas if self.spec.has_workers else 0)
        return [self._new_worker(self.spec, number, self._worker_changed) for number in numbers]

    def take_down(self, drain_timeout: float) -> asyncio.Task[None]:
        """End the endpoints; at once there are none to use, and at the task's end none at all."""
        if self._is_proven and self._replicas.is_measured:
            self.measured = self._replicas.footprint
        replicas, self._replicas, self._is_proven = self._replicas, Replicas(), False
        router, self._router = self._router, None
        if self._ending is None or self._ending.done():
            self._is_ending = router is not None or bool(replicas)
            work = self._end(replicas, router, drain_timeout)
            self._ending = asyncio.create_task(work, name=f"end-{self.model_id}")
        return self._ending

    async def ended(self) -> None:
        """Wait until none of the workers that were taken down is left."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, replicas: Replicas, router: Router | None, drain_timeout: float) -> None:
        if router is None and not replicas:
            return
        ends_at = time.monotonic() + drain_timeout
        await replicas.stop(drain_timeout)
        if router is not None:
            if self.spec.upstreams:
                await self._unused_within(ends_at - time.monotonic())
            await router.close()
        self._is_ending = False
        if self.state != "loading":  # else what comes next tells more
            self._on_change(self)

    async def _unused_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._usage.unused()

    async def check_health(self) -> Probe | None:
        """Probe every worker and remember, and return, the worst of what they said.

        Without workers the whole is asked, and how each upstream does is the router's to know. None
        when they were taken down meanwhile, so that they could not but fail.
        """
        router, replicas, timeout = self._router, self._replicas, self._patience.probe
        assert router is not None, "only a version with endpoints is probed"
        if replicas:
            found = await probe_all(replicas.models, self.spec.golden, timeout=timeout)
        else:
            golden, is_alive = self.spec.golden, router.is_answering
            found = await probe_golden(router, golden, is_alive=is_alive, timeout=timeout)
        if router is not self._router:
            return None
        self.checked_at = time.monotonic()
        self.health.note_probe(found, self.checked_at)
        self._on_change(self)
        return found

    # Use

    @contextmanager
    def lease(self) -> Iterator[Router]:
        """Use its endpoints for a request, whose end counts for the health."""
        assert self._router is not None, "a lease is given when nothing refuses it"
        failure: BaseException | None = None
        with self.hold():
            try:
                yield self._router
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
        if self._router is not None:
            self._router.worker_changed(worker)
        self._on_change(self)

    def _endpoint_changed(self) -> None:
        self._on_change(self)

    @property
    def _phase(self) -> str:
        if self.state == "unloading" or self._is_ending:
            return "draining"
        if not self.is_up:
            return _PHASE_WITHOUT_ENDPOINTS[self.state]
        if not (self._replicas or self._is_proven):
            return "connecting"
        is_settled = self._is_proven or self._replicas.has_failed
        return self._replicas.phase or ("" if is_settled else "warming")


_PHASE_WITHOUT_ENDPOINTS: dict[State, str] = {
    "loading": "queued",
    "health_check": "queued",
    "ready": "idle",
    "active": "idle",
    "deprecated": "cold",
    "failed": "",
}
