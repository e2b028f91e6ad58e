"""A model version, and one worker of it, as they are seen from outside at one moment."""

from dataclasses import dataclass, field
from typing import Literal

from headrace.endpoints import EndpointStatus, RoutingCounts
from headrace.generation import EngineStats, ModelInfo
from headrace.registry.lifecycle import State

WorkerState = Literal["loading", "ready", "failed", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """`progress` is the share done, 0 to 1, of `phase`; `reason` says what went wrong last."""

    state: WorkerState = "loading"
    progress: float = 0.0
    phase: str = "starting"
    reason: str | None = None
    pid: int | None = None
    restarts: int = 0
    memory_bytes: int = 0
    info: ModelInfo | None = None
    stats: EngineStats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One version with all its workers, and its other endpoints.

    A worker that dies and comes back leaves the state as it is: `phase` tells what the workers do,
    `is_answering` whether the version could answer now. `health_score` is None before the first
    probe; times are Unix times.
    """

    model_id: str
    name: str
    version: int
    state: State
    is_answering: bool = False
    progress: float = 0.0
    phase: str = "starting"
    reason: str | None = None
    health_score: float | None = None
    replicas: int = 1
    pids: tuple[int, ...] = ()
    restarts: int = 0
    memory_bytes: int = 0
    started_at: float = 0.0
    loaded_at: float | None = None
    num_leases: int = 0
    info: ModelInfo | None = None
    stats: EngineStats | None = None
    endpoints: tuple[EndpointStatus, ...] = ()
    routing: RoutingCounts = field(default_factory=RoutingCounts)
