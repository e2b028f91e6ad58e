"""Which models are served, by name and version. Leaves processes to their supervisors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from headrace.errors import DrainingError, ModelNotFoundError
from headrace.generation import LanguageModel
from headrace.registry.patience import Patience
from headrace.registry.process import WORKER_COMMAND
from headrace.registry.spec import ModelSpec
from headrace.registry.status import ModelStatus
from headrace.registry.supervisor import Supervisor
from headrace.telemetry.logging import LogFormat
from headrace.worker.spec import WorkerSpec

__all__ = ["ModelStatus", "Registry"]

Listener = Callable[[ModelStatus], None]


class Registry:
    """Every model of this server. Of a name's versions the highest is the active one."""

    def __init__(
        self,
        state_dir: Path,
        *,
        log_format: LogFormat = "text",
        log_dir: Path | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        patience: Patience | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._log_format: LogFormat = log_format
        self._log_dir = log_dir
        self._command = command
        self._patience = patience
        self._supervisors: dict[str, Supervisor] = {}  # by model id
        self._active: dict[str, str] = {}  # name to model id
        self._listeners: list[Listener] = []
        self._num_leases = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._ends_at = 0.0  # monotonic; once draining

    async def start(self, specs: Iterable[ModelSpec]) -> None:
        """Begin to load; `loaded` waits for the end of it."""
        for spec in sorted(specs, key=lambda spec: spec.version):
            self._supervisors[spec.model_id] = self._supervisor(spec)
            self._active[spec.name] = spec.model_id
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def loaded(self) -> None:
        """Wait until every model is ready; raise the error of the first that will never be."""
        waits = [asyncio.create_task(each.settled()) for each in self._supervisors.values()]
        try:
            for settled in asyncio.as_completed(waits):
                await settled
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    @property
    def is_ready(self) -> bool:
        """Whether at least one active version answers."""
        return not self._is_draining and any(
            self._supervisors[model_id].status.state == "ready"
            for model_id in self._active.values()
        )

    @property
    def num_leases(self) -> int:
        return self._num_leases

    def statuses(self) -> list[ModelStatus]:
        return [self._seen(supervisor) for supervisor in self._supervisors.values()]

    def listen(self, listener: Listener) -> None:
        """Call it with the new status at every change of state, phase or progress."""
        self._listeners.append(listener)

    @asynccontextmanager
    async def acquire(self, name: str) -> AsyncIterator[LanguageModel]:
        """Lease a model by name, or one version by `name@version`, for one request."""
        supervisor = self._find(name)
        if self._is_draining:
            raise DrainingError(
                "the server is shutting down",
                retry_after=supervisor.retry_after_stop(self._ends_at),
            )
        if (refusal := supervisor.refusal) is not None:
            raise refusal
        self._num_leases += 1
        self._idle.clear()
        try:
            yield supervisor.model
        finally:
            self._num_leases -= 1
            if self._num_leases == 0:
                self._idle.set()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - part of the contract
        """Refuse new requests and let the leased ones end; whether they all did in time."""
        self._is_draining = True
        self._ends_at = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, drain_timeout: float = 0.0) -> None:
        """Stop every worker; what still runs gets the timeout. Nothing is left behind."""
        self._is_draining = True
        self._ends_at = time.monotonic() + drain_timeout
        stops = (each.stop(drain_timeout) for each in self._supervisors.values())
        await asyncio.gather(*stops)

    def _supervisor(self, spec: ModelSpec) -> Supervisor:
        worker_spec = WorkerSpec(
            model_id=spec.model_id,
            source=spec.source,
            state_dir=self._state_dir,
            engine=spec.engine,
            executor=spec.executor,
            log_format=self._log_format,
            log_dir=self._log_dir,
        )
        return Supervisor(
            spec,
            worker_spec,
            command=self._command,
            patience=self._patience,
            on_change=self._tell,
        )

    def _find(self, name: str) -> Supervisor:
        supervisor = self._supervisors.get(self._active.get(name, name))
        if supervisor is None:
            raise ModelNotFoundError(f"the model `{name}` does not exist", param="model")
        return supervisor

    def _seen(self, supervisor: Supervisor) -> ModelStatus:
        status = supervisor.status
        if status.state == "ready" and self._active[status.name] == status.model_id:
            return replace(status, state="active")
        return status

    def _tell(self, supervisor: Supervisor) -> None:
        status = self._seen(supervisor)
        for listener in self._listeners:
            listener(status)
