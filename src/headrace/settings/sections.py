"""What can be set: each section's keys with type, range and default, and what they mean."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field

from headrace.engine.config import EngineConfig
from headrace.executors.config import (
    MAX_THREADS,
    ExecutorConfig,
    ExecutorName,
    KVCachePrecision,
    Precision,
)
from headrace.registry.spec import GoldenCase, Retain

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RESERVED_NAMES = frozenset({"events", "history", "load", "rollback", "swap"})
"""Words that stand in the API's paths where a model's name does."""
MAX_VERSION = (1 << 31) - 1  # what a database's integer holds
MAX_REPLICAS = 64
MAX_NUMBER = (1 << 63) - 1  # what a frame to a worker holds

_ENGINE = EngineConfig()
_EXECUTOR = ExecutorConfig()
_GOLDEN = GoldenCase(prompt="", expected="")
_MIB = 1 << 20


def _absolute(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError("should be an absolute path")
    return path


def _unreserved(name: str) -> str:
    if name in RESERVED_NAMES:
        words = ", ".join(sorted(RESERVED_NAMES))
        raise ValueError(f"should be none of the API's own words ({words})")
    return name


def default_state_dir() -> Path:
    """Where downloads and run-time files go unless `server.state_dir` says otherwise."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "headrace"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSection(_Section):
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
    model_roots: tuple[Annotated[Path, AfterValidator(_absolute)], ...] = Field(
        (), description="folders from which clients may load models; absolute, or begin with `~`"
    )


class StorageSection(_Section):
    """`[storage]`: where the server keeps what must outlive it."""

    database_url: str | None = Field(
        None,
        min_length=1,
        repr=False,  # a password may be in it
        description="`sqlite:///PATH` or `postgresql://...`; unset: `headrace.db` under"
        " `state_dir`, or memory where the port is 0",
    )


class LimitsSection(_Section):
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


class TelemetrySection(_Section):
    """`[telemetry]`: what the server tells of itself."""

    log_format: Literal["text", "json"] = Field(
        "text", description="`text` for people, `json` for machines"
    )
    log_dir: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        None, description="folder of the server's rotated log file and each worker's; unset: stderr"
    )
    metrics: bool = Field(True, description="serve `/metrics`")


class EngineSection(_Section):
    """`[models.engine]`: how one model is computed."""

    executor: ExecutorName = Field(
        _EXECUTOR.executor, description="what does the arithmetic: `auto`, `native` or `openvino`"
    )
    precision: Precision = Field(
        _EXECUTOR.precision,
        description="how weights are stored: `auto`, `fp32`, `bf16`, `int8` (`w8a16`), `w8a8` or"
        " `w4a16`",
    )
    kv_cache_precision: KVCachePrecision = Field(
        _EXECUTOR.kv_cache_precision,
        description="how the KV cache is stored: `auto`, `fp32`, `fp16`, `bf16` or `int8` (`u8`)",
    )
    kv_cache_memory: ByteSize | None = Field(
        None,
        ge=1,
        le=MAX_NUMBER,
        description="bytes for the KV cache, also as `512MiB`; unset: chosen for the machine",
    )
    num_threads: int | None = Field(
        None,
        ge=1,
        le=MAX_THREADS,
        description="compute threads; unset: every core the process may use, divided among the"
        " version's replicas",
    )
    max_model_len: int | None = Field(
        None,
        ge=2,
        le=MAX_NUMBER,
        description="longest context in tokens; unset: what the model allows",
    )
    max_num_seqs: int = Field(
        _ENGINE.max_num_seqs, ge=1, le=MAX_NUMBER, description="sequences in one step"
    )
    max_num_batched_tokens: int = Field(
        _ENGINE.max_num_batched_tokens, ge=1, le=MAX_NUMBER, description="tokens in one step"
    )
    prefix_caching: bool = Field(
        _ENGINE.prefix_caching, description="reuse the KV blocks of equal prompt beginnings"
    )


class GoldenSection(_Section):
    """`[[models.golden]]`: a prompt with a known answer, asked before a version may serve."""

    prompt: str = Field(min_length=1, max_length=65536, description="what the model is to continue")
    expected: str = Field(
        min_length=1, max_length=65536, description="text that the greedy answer must hold"
    )
    max_tokens: int = Field(
        _GOLDEN.max_tokens, ge=1, le=1024, description="tokens of the answer at most"
    )


class ModelSection(_Section):
    """`[[models]]`: one model to serve."""

    source: str = Field(
        min_length=1,
        max_length=4096,
        description="where the model comes from, see [models](models.md)",
    )
    name: Annotated[str, Field(pattern=f"^{MODEL_NAME}$"), AfterValidator(_unreserved)] | None = (
        Field(None, description="name in requests; unset: from the source")
    )
    version: int = Field(
        1, ge=1, le=MAX_VERSION, description="number after the `@` of the model id"
    )
    replicas: int = Field(
        1, ge=1, le=MAX_REPLICAS, description="worker processes that serve the version"
    )
    retain: Retain = Field(
        "warm",
        description="a version that a swap has replaced: `warm` keeps its worker, `cold` ends it,"
        " `none` forgets the version",
    )
    idle_unload_after: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="seconds without a request after which the workers end until the next one;"
        " unset: never",
    )
    golden: tuple[GoldenSection, ...] = Field(
        (), max_length=64, description="prompts with known answers, see `[[models.golden]]`"
    )
    engine: EngineSection = EngineSection()


class Sections(_Section):
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
        "models.routing",
        "models.runtime",
        "models.tags",
        "models.upstreams",
        "models.warmup",
        "models.engine.executor=torch",
    }
)
"""Keys, and values of keys, that are part of the plan and have nothing behind them so far."""

SECRETS = frozenset({"storage.database_url"})
"""Keys whose values are shown to nobody."""

SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerSection,
    "storage": StorageSection,
    "limits": LimitsSection,
    "telemetry": TelemetrySection,
    "models": ModelSection,
    "engine": EngineSection,
    "golden": GoldenSection,
}
