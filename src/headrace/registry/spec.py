"""What a server is asked to serve, as plain values."""

from dataclasses import dataclass, field
from typing import Literal

from headrace.endpoints import RoutingConfig, UpstreamConfig
from headrace.engine.config import EngineConfig
from headrace.executors.config import ExecutorConfig

Retain = Literal["warm", "cold", "none"]
"""What becomes of a version that a swap has replaced, once its last request has ended.

warm: its worker stays, and a rollback takes no time. cold: its worker ends, and a rollback loads it
again. none: it is unloaded and forgotten.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """A prompt whose greedy answer must hold `expected`, or the version is not healthy."""

    prompt: str
    expected: str
    max_tokens: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One version of one model: where it comes from and how it is to run.

    `replicas` workers serve it, and `upstreams` beside them. A `source` that is a URL is one of the
    upstreams, and there are no workers then. Unused for `idle_unload_after` seconds its workers
    end, and the next request starts them again; None: they stay.
    """

    name: str
    source: str
    version: int = 1
    engine: EngineConfig = field(default_factory=EngineConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    replicas: int = 1
    retain: Retain = "warm"
    idle_unload_after: float | None = None
    golden: tuple[GoldenCase, ...] = ()
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    upstreams: tuple[UpstreamConfig, ...] = ()

    @property
    def model_id(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def has_workers(self) -> bool:
        """Whether the source is a model to load."""
        return not is_url(self.source)


def is_url(source: str) -> bool:
    """Whether a source is a server that answers already, and no model to load."""
    return source.lower().startswith(("http://", "https://"))
