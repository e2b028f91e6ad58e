"""One model version as it is seen from outside, at one moment."""

from dataclasses import dataclass
from typing import Literal

from headrace.generation import EngineStats, ModelInfo

State = Literal["loading", "ready", "active", "failed", "unloading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """`progress` is the share done, 0 to 1, of `phase`; `reason` says what went wrong last."""

    model_id: str
    name: str
    version: int
    state: State = "loading"
    progress: float = 0.0
    phase: str = "starting"
    reason: str | None = None
    pid: int | None = None
    restarts: int = 0
    memory_bytes: int = 0
    loaded_at: float | None = None  # Unix time
    info: ModelInfo | None = None
    stats: EngineStats | None = None
