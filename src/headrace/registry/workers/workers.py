"""Makes the worker processes of versions from what the server was told. Starts none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import machine
from headrace.registry.spec import ModelSpec
from headrace.registry.workers.patience import Patience
from headrace.registry.workers.supervisor import Supervisor
from headrace.telemetry.logging import LogFormat
from headrace.worker.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What all of them have in common."""

    state_dir: Path
    log_format: LogFormat
    log_dir: Path | None
    command: Sequence[str]
    patience: Patience

    def new(
        self, spec: ModelSpec, number: int, on_change: Callable[[Supervisor], None]
    ) -> Supervisor:
        """The n-th worker of a version, from 0."""
        worker_spec = WorkerSpec(
            model_id=spec.model_id,
            source=spec.source,
            state_dir=self.state_dir,
            replica=number,
            engine=spec.engine,
            executor=_share_of_cores(spec),
            log_format=self.log_format,
            log_dir=self.log_dir,
        )
        return Supervisor(
            spec, worker_spec, command=self.command, patience=self.patience, on_change=on_change
        )


def _share_of_cores(spec: ModelSpec) -> ExecutorConfig:
    """Replicas share the cores, unless it is said how many threads each one has."""
    if spec.replicas == 1 or spec.executor.num_threads is not None:
        return spec.executor
    return replace(spec.executor, num_threads=max(1, machine().num_cores // spec.replicas))
