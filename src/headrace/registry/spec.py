"""What a server is asked to serve, as plain values."""

from dataclasses import dataclass, field

from headrace.engine.config import EngineConfig
from headrace.executors.config import ExecutorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One version of one model: where it comes from and how it is to run."""

    name: str
    source: str
    version: int = 1
    engine: EngineConfig = field(default_factory=EngineConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)

    @property
    def model_id(self) -> str:
        return f"{self.name}@{self.version}"
