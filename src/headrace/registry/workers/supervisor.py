"""Keeps one worker of a version running: starts it, watches it, restarts it, stops it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace.errors import (
    ConfigurationError,
    DrainingError,
    HeadraceError,
    ModelFileError,
    NotReadyError,
    WorkerDiedError,
)
from headrace.generation import ModelInfo
from headrace.registry.spec import ModelSpec
from headrace.registry.status import WorkerStatus
from headrace.registry.workers.backoff import Backoff
from headrace.registry.workers.patience import Patience
from headrace.registry.workers.process import WORKER_COMMAND, WorkerProcess
from headrace.registry.workers.watchdog import Watchdog
from headrace.worker import frames
from headrace.worker.remote import RemoteModel
from headrace.worker.spec import WorkerSpec

FINAL_ERRORS = (ModelFileError, ConfigurationError)
"""What another try would only repeat."""
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 60.0  # seconds

log = structlog.get_logger("headrace.registry")


class Supervisor:
    """One worker's place in a version, and the process that fills it now, if there is one.

    A version that has never served is given up after some failed loads; one that has served is
    tried for as long as it is wanted.
    """

    def __init__(
        self,
        spec: ModelSpec,
        worker_spec: WorkerSpec,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        patience: Patience | None = None,
        on_change: Callable[["Supervisor"], None] = lambda _: None,
    ) -> None:
        self._worker_spec = worker_spec
        self.name = f"worker#{worker_spec.replica}"  # no upstream can have such a name
        self._command = tuple(command)
        self._patience = patience or Patience()
        self._on_change = on_change
        self._log = log.bind(model=spec.model_id)
        # The engine holds less and so refuses first, with a better retry time.
        self.max_in_flight = spec.engine.max_queued_requests + spec.engine.max_num_seqs
        self.model = RemoteModel(self.max_in_flight)
        self.failure: HeadraceError | None = None
        self._model_id = spec.model_id
        self._status = WorkerStatus()
        self._backoff = Backoff(self._patience)
        self._drain_timeout = 0.0
        self._ends_at = 0.0  # monotonic; once stopping
        self._load_seconds: float | None = None
        self._is_stopping = False
        self._worker: WorkerProcess | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._begin_attempt()

    @property
    def status(self) -> WorkerStatus:
        return self._status

    @property
    def is_ready(self) -> bool:
        return self._status.state == "ready"

    @property
    def refusal(self) -> HeadraceError | None:
        """Why a new request cannot be taken; a short wait for a restarting worker is no reason."""
        status = self._status
        if status.state == "ready" or self._is_coming_back:
            return None
        if status.state == "failed":
            return self._failed()
        if status.state == "ending":
            return self._draining(f"{self._model_id} is being unloaded")
        return NotReadyError(f"{self._model_id} is loading", retry_after=self._retry_after())

    def retry_after_stop(self, ends_at: float) -> float:
        """Seconds until a server that is gone at `ends_at` and starts again could answer."""
        now = time.monotonic()
        # A load that has not ended yet takes at least what it has taken so far.
        load = now - self._started_at if self._load_seconds is None else self._load_seconds
        return _bounded(max(0.0, ends_at - now) + load)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"supervise-{self._model_id}")

    async def settled(self) -> None:
        """Wait until the model is ready for the first time; raise why, if it will never be."""
        await self._settled.wait()
        if self.failure is not None:
            raise self.failure

    async def stop(self, drain_timeout: float) -> None:
        """Let running requests finish within the timeout, then end the worker."""
        self._drain_timeout = drain_timeout
        self._ends_at = time.monotonic() + drain_timeout
        self._is_stopping = True
        self._wake.set()
        if self._status.state != "failed":
            self._change(state="ending", phase="draining")
        await self._task
        self.model.close(self._draining("the server stopped before this answer was complete"))
        if not self._settled.is_set():
            self._settle(self._draining("the server was stopped while loading"))

    async def _run(self) -> None:
        try:
            while not self._is_stopping:
                await self._run_worker()
                if self._status.state == "failed":
                    return
                if not self._is_stopping:
                    self._wake.clear()
                    await self._sleep(self._backoff.delay())
        except Exception as error:  # noqa: BLE001 - requests that wait must be answered
            self._log.exception("supervisor.broke")
            self._give_up(HeadraceError(f"the supervisor broke: {type(error).__name__}: {error}"))

    # One worker's life

    async def _run_worker(self) -> None:
        self._begin_attempt()
        try:
            worker = await WorkerProcess.start(
                self._command, receive=self._receive, broken=self._find_fault
            )
        except OSError as error:
            self._worker_ended(f"could not be started: {error}")
            return
        self._worker = worker
        try:
            await self._watch(worker)
        finally:
            ending = await worker.end()
            self._worker = None
        self._worker_ended(self._fault or ending)

    def _begin_attempt(self) -> None:
        self._watchdog = Watchdog(self._patience)
        self._fault: str | None = None
        self._load_error: HeadraceError | None = None
        self._started_at = time.monotonic()
        self._ready_at: float | None = None

    async def _watch(self, worker: WorkerProcess) -> None:
        """Return when the worker has exited, or must."""
        worker.on_exit(self._wake.set)
        worker.send(frames.Load(self._worker_spec))
        self._change(pid=worker.pid)
        self._log.info("worker.started", pid=worker.pid)
        while not worker.has_exited and self._fault is None:
            if self._is_stopping:
                await worker.stop(drain=self._drain_timeout, termination=self._patience.termination)
                return
            if not await self._sleep(self._patience.tick):
                # A frame may have told of a fault since the time ran out.
                self._fault = self._fault or self._watchdog.tick()

    def _receive(self, frame: frames.FromWorker) -> None:
        self._watchdog.hear(frame)
        match frame:
            case frames.Step():
                self.model.receive_step(frame)
                self._status = replace(self._status, stats=frame.stats)
            case frames.Reply():
                self.model.receive_reply(frame)
            case frames.Heartbeat():
                self._status = replace(
                    self._status, memory_bytes=frame.memory_bytes, stats=frame.stats
                )
            case frames.Progress():
                self._change(phase=frame.phase, progress=frame.share)
            case frames.Ready():
                self._worker_ready(frame.info)
            case frames.Failed():
                self._load_error = frame.error
                self._find_fault(frame.error.message)
            case frames.Hello():
                pass

    def _worker_ready(self, info: ModelInfo) -> None:
        assert self._worker is not None
        self._ready_at = time.monotonic()
        self._load_seconds = self._ready_at - self._started_at
        self._log.info(
            "model.ready",
            seconds=round(self._load_seconds, 3),
            executor=info.executor,
            precision=info.precision,
        )
        self.model.attach(self._worker.channel, info)
        if not self._is_stopping:
            self._change(state="ready", phase="", progress=1.0, info=info)
        self._settle()

    def _find_fault(self, reason: str) -> None:
        self._fault = reason
        self._wake.set()

    def _worker_ended(self, reason: str) -> None:
        if self._is_stopping:
            return
        if self._ready_at is not None:
            self._backoff.note_death(time.monotonic() - self._ready_at)
        else:
            self._backoff.note_failed_load()
            error = self._load_error or WorkerDiedError(f"the worker {reason} while loading")
            is_final = isinstance(error, FINAL_ERRORS) or self._backoff.is_exhausted
            if is_final and self._status.info is None:
                self._give_up(error)
                return
        self._log.warning(
            "worker.ended", reason=reason, pid=self._status.pid, requests=self.model.num_in_flight
        )
        self.model.lose_worker(f"the worker {reason}")
        self._change(
            state="loading",
            phase="restarting",
            progress=0.0,
            reason=reason,
            pid=None,
            memory_bytes=0,
            stats=None,
            restarts=self._status.restarts + 1,
        )

    def _give_up(self, error: HeadraceError) -> None:
        # Whoever waits for the first load is told by the error itself.
        log = self._log.error if self._settled.is_set() else self._log.info
        log("model.failed", reason=error.message)
        self._change(
            state="failed", phase="", reason=error.message, pid=None, memory_bytes=0, stats=None
        )
        self.model.close(self._failed())
        self._settle(error)

    # Waiting and telling

    async def _sleep(self, seconds: float) -> bool:
        """Sleep, or be woken, which the answer tells."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _settle(self, failure: HeadraceError | None = None) -> None:
        if failure is not None:
            self.failure = failure
        self._settled.set()

    def _change(self, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerStatus
        self._status = replace(self._status, **changes)
        self._on_change(self)

    @property
    def _is_coming_back(self) -> bool:
        """Whether the model has served before and its restart has not failed so far."""
        status = self._status
        return (
            status.state == "loading"
            and status.info is not None
            and self._backoff.num_failed_loads == 0
        )

    def _failed(self) -> NotReadyError:
        """What clients are told; the reason may name files and is for the operator."""
        return NotReadyError(f"{self._model_id} has failed", retry_after=MAX_RETRY_AFTER)

    def _retry_after(self) -> float:
        """As long as the last load had still to go by now, or, the first time, as long again."""
        elapsed = time.monotonic() - self._started_at
        remaining = elapsed if self._load_seconds is None else self._load_seconds - elapsed
        return _bounded(remaining)

    def _draining(self, message: str) -> DrainingError:
        return DrainingError(message, retry_after=self.retry_after_stop(self._ends_at))


def _bounded(retry_after: float) -> float:
    return min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, retry_after))
