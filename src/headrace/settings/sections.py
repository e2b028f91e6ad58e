"""What can be set: each section's keys with type, range and default, and what they mean."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, Field

from headrace.engine.config import EngineConfig
from headrace.settings.models import EngineSection, GoldenSection, ModelSection
from headrace.settings.section import MAX_NUMBER, Section, absolute
from headrace.settings.upstreams import RoutingSection, UpstreamSection, UpstreamUrl

_ENGINE = EngineConfig()
_MIB = 1 << 20


def default_state_dir() -> Path:
    """Where downloads and run-time files go unless `server.state_dir` says otherwise."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "headrace"


class ServerSection(Section):
    """`[server]`: where it listens and how long it waits."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="TCP port; 0 takes a free one")
    allow_unauthenticated: bool = Field(
        False, description="permits a host that other machines can reach, without authentication"
    )
    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=default_state_dir, description="downloaded models and run-time files"
    )
    max_body_bytes: ByteSize = Field(
        ByteSize(_MIB),
        ge=1,
        description="largest request body in bytes, also as `1MiB`; more is a 413",
    )
    request_timeout: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="seconds a request may take; more is a 504"
    )
    shutdown_settle: float = Field(
        0.5,
        ge=0,
        allow_inf_nan=False,
        description="seconds after SIGTERM in which new requests are still taken",
    )
    shutdown_timeout: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds that running requests get to end"
    )
    max_loaded_models: int | None = Field(
        None, ge=1, description="versions that may be loaded at once; unset: no limit"
    )
    model_roots: tuple[Annotated[Path, AfterValidator(absolute)], ...] = Field(
        (), description="folders from which clients may load models; absolute, or begin with `~`"
    )
    upstream_roots: tuple[UpstreamUrl, ...] = Field(
        (), description="URLs below which clients may name upstreams; no key is sent there"
    )


class StorageSection(Section):
    """`[storage]`: where the server keeps what must outlive it."""

    database_url: str | None = Field(
        None,
        min_length=1,
        repr=False,  # a password may be in it
        description="`sqlite:///PATH` or `postgresql://...`; unset: `headrace.db` under"
        " `state_dir`, or memory where the port is 0",
    )


class LimitsSection(Section):
    """`[limits]`: how much may wait, per model."""

    max_queued_requests: int = Field(
        _ENGINE.max_queued_requests,
        ge=1,
        le=MAX_NUMBER,
        description="requests that may wait; more is a 503",
    )
    max_queued_tokens: int = Field(
        _ENGINE.max_queued_tokens,
        ge=1,
        le=MAX_NUMBER,
        description="prompt tokens that may wait; more is a 503",
    )


class TelemetrySection(Section):
    """`[telemetry]`: what the server tells of itself."""

    log_format: Literal["text", "json"] = Field(
        "text", description="`text` for people, `json` for machines"
    )
    log_dir: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        None, description="folder of the server's rotated log file and each worker's; unset: stderr"
    )
    metrics: bool = Field(True, description="serve `/metrics`")


class Sections(Section):
    """The whole file."""

    server: ServerSection = Field(default_factory=ServerSection)
    storage: StorageSection = StorageSection()
    limits: LimitsSection = LimitsSection()
    telemetry: TelemetrySection = TelemetrySection()
    models: tuple[ModelSection, ...] = ()


NOT_SUPPORTED_YET = frozenset(
    {
        "auth",
        "jobs",
        "storage.artifacts_url",
        "storage.redis_url",
        "server.tls_certfile",
        "server.tls_keyfile",
        "server.workers_dir",
        "limits.requests_per_minute",
        "limits.tokens_per_minute",
        "telemetry.otlp_endpoint",
        "models.batching",
        "models.runtime",
        "models.tags",
        "models.warmup",
        "models.engine.executor=torch",
    }
)
"""Keys, and values of keys, that are part of the plan and have nothing behind them so far."""

SECRETS = frozenset(
    {
        "storage.database_url",
        "server.upstream_roots",
        # A person may have put the key itself into them.
        "models.source",
        "models.upstreams.api_key_env",
        "models.upstreams.url",
    }
)
"""Keys whose values are shown to nobody."""

SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerSection,
    "storage": StorageSection,
    "limits": LimitsSection,
    "telemetry": TelemetrySection,
    "models": ModelSection,
    "engine": EngineSection,
    "golden": GoldenSection,
    "routing": RoutingSection,
    "upstreams": UpstreamSection,
}
