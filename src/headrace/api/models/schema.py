"""The bodies of the models' routes. Ranges are those of `[[models]]`, and checked with it."""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from headrace.api.errors import ErrorDetail
from headrace.api.openai.schema import Unsupported
from headrace.registry.registry import Swap
from headrace.registry.spec import Retain
from headrace.registry.status import ModelStatus

ModelId = Annotated[str, Meta(min_length=1, max_length=256, description="A version: name@version.")]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or an upstream; `latency_seconds` is its average time to the first byte.

    `taking` says whether it gets new requests, `reason` why it does not.
    """

    name: str
    kind: str
    taking: bool
    breaker: str
    in_flight: int
    latency_seconds: float | None
    weight: float
    reason: str | None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One version. Times are Unix times, `progress` is the share done of `phase`."""

    model_id: str
    name: str
    version: int
    state: str
    active: bool
    answering: bool
    progress: float
    phase: str
    health_score: float | None
    memory_bytes: int
    started_at: float
    loaded_at: float | None
    reason: str | None
    replicas: int
    restarts: int
    leases: int
    executor: str | None
    precision: str | None
    endpoints: list[Endpoint]


class Models(msgspec.Struct, frozen=True):
    """Every version that is there."""

    models: list[Model]


class RunOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a version is to run: the keys of `[[models]]`; null is the same as left out."""

    engine: Annotated[dict[str, Any] | None, Meta(description="The keys of `[models.engine]`.")] = (
        None
    )
    replicas: Annotated[int | None, Meta(description="Worker processes.")] = None
    retain: Annotated[
        str | None,
        Meta(
            description="What becomes of it once a swap has replaced it.",
            extra_json_schema={"enum": [*get_args(Retain), None]},
        ),
    ] = None
    idle_unload_after: Annotated[
        float | None, Meta(description="Seconds without a request; its workers end then.")
    ] = None
    golden: Annotated[
        list[dict[str, Any]] | None, Meta(description="Prompts with `expected` answers.")
    ] = None
    routing: Annotated[
        dict[str, Any] | None, Meta(description="The keys of `[models.routing]`.")
    ] = None
    upstreams: Annotated[
        list[dict[str, Any]] | None,
        Meta(
            description="The keys of `[[models.upstreams]]` but for `ca_file`: upstreams of the"
            " configuration, or below its `upstream_roots`."
        ),
    ] = None
    batching: Unsupported = None
    runtime: Unsupported = None
    tags: Unsupported = None
    warmup: Unsupported = None


class LoadRequest(RunOptions, kw_only=True):
    """`POST /api/v1/models/load`."""

    name: str
    source: Annotated[
        str | None, Meta(description="May be left out where there are upstreams.")
    ] = None
    version: Annotated[int | None, Meta(description="Left out: the highest known + 1.")] = None


class SwapRequest(RunOptions, kw_only=True):
    """`POST /api/v1/models/swap`; with a `source` or upstreams a version is loaded in its place."""

    model_id: ModelId
    mode: Annotated[
        Literal["switch", "queue"] | None,
        Meta(description="queue: end the old version before the new one loads; requests wait."),
    ] = None
    source: str | None = None


class RollbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /api/v1/models/rollback`."""

    name: str


class Accepted(msgspec.Struct, frozen=True):
    """What goes on in the background."""

    model_id: str
    state: str


class Unloading(msgspec.Struct, frozen=True):
    """The versions that are on their way out."""

    models: list[Accepted]


class SwapAnswer(msgspec.Struct, frozen=True):
    """The pointer as it was and as it is."""

    previous: str | None
    active: str
    duration_ms: float


class SafetyCheck(msgspec.Struct, frozen=True):
    """One reason for which a swap may be refused."""

    name: str
    passed: bool
    detail: str


class SafetyReport(msgspec.Struct, frozen=True):
    """Whether a version may become the active one."""

    model_id: str
    safe: bool
    checks: list[SafetyCheck]


class UnsafeSwap(msgspec.Struct, frozen=True):
    """The body of a 400 for a swap that is not safe."""

    error: ErrorDetail
    safety: SafetyReport


class ModelChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something done to a model; `outcome` is running, done, failed or undone."""

    kind: str
    name: str
    previous: str | None
    active: str | None
    who: str
    started_at: float
    ended_at: float | None
    outcome: str
    detail: str | None


class History(msgspec.Struct, frozen=True):
    """What was done, the newest first."""

    changes: list[ModelChange]


def model_of(status: ModelStatus) -> Model:
    info = status.info
    return Model(
        model_id=status.model_id,
        name=status.name,
        version=status.version,
        state=status.state,
        active=status.state == "active",
        answering=status.is_answering,
        progress=status.progress,
        phase=status.phase,
        health_score=status.health_score,
        memory_bytes=status.memory_bytes,
        started_at=status.started_at,
        loaded_at=status.loaded_at,
        reason=status.reason,
        replicas=status.replicas,
        restarts=status.restarts,
        leases=status.num_leases,
        executor=info.executor if info else None,
        precision=info.precision if info else None,
        endpoints=endpoints_of(status),
    )


def endpoints_of(status: ModelStatus) -> list[Endpoint]:
    return [
        Endpoint(
            name=each.name,
            kind=each.kind,
            taking=each.is_taking,
            breaker=each.breaker,
            in_flight=each.num_in_flight,
            latency_seconds=each.latency,
            weight=each.weight,
            reason=each.reason,
        )
        for each in status.endpoints
    ]


def swap_answer(swap: Swap) -> SwapAnswer:
    return SwapAnswer(swap.previous, swap.active, round(swap.seconds * 1e3, 3))
