"""What a worker process is told to run, as plain values."""

from dataclasses import dataclass, field
from pathlib import Path

from headrace.engine.config import EngineConfig
from headrace.executors.config import ExecutorConfig
from headrace.telemetry.logging import LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One of the workers of a model version, counted from 0 as `replica`.

    Thread counts and the like are here and not in the environment.
    """

    model_id: str
    source: str
    state_dir: Path
    replica: int = 0
    engine: EngineConfig = field(default_factory=EngineConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    log_format: LogFormat = "text"
    log_dir: Path | None = None

    @property
    def log_file(self) -> str:
        """A name of its own: two processes cannot rotate one file."""
        return (
            f"{self.model_id}.log" if self.replica == 0 else f"{self.model_id}.{self.replica}.log"
        )
