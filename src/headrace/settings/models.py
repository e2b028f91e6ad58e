"""`[[models]]` and the tables in it, but for routing's: keys, ranges, defaults and meanings."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, ByteSize, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from headrace.engine.config import EngineConfig
from headrace.executors.config import (
    MAX_THREADS,
    ExecutorConfig,
    ExecutorName,
    KVCachePrecision,
    Precision,
)
from headrace.registry.spec import GoldenCase, Retain, is_url
from headrace.settings.section import MAX_NUMBER, Section
from headrace.settings.upstreams import (
    MAX_UPSTREAMS,
    RoutingSection,
    UpstreamSection,
    complaints,
)

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RESERVED_NAMES = frozenset({"events", "history", "load", "rollback", "swap"})
"""Words that stand in the API's paths where a model's name does."""
MAX_VERSION = (1 << 31) - 1  # what a database's integer holds
MAX_REPLICAS = 64

CONFLICT = "conflict"
"""The type of an error whose key is right by itself, so that its value tells nothing."""
_OF_WORKERS = frozenset({"engine", "replicas", "idle_unload_after"})

_ENGINE = EngineConfig()
_EXECUTOR = ExecutorConfig()
_GOLDEN = GoldenCase(prompt="", expected="")


def _unreserved(name: str) -> str:
    if name in RESERVED_NAMES:
        words = ", ".join(sorted(RESERVED_NAMES))
        raise ValueError(f"should be none of the API's own words ({words})")
    return name


class EngineSection(Section):
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


class GoldenSection(Section):
    """`[[models.golden]]`: a prompt with a known answer, asked before a version may serve."""

    prompt: str = Field(min_length=1, max_length=65536, description="what the model is to continue")
    expected: str = Field(
        min_length=1, max_length=65536, description="text that the greedy answer must hold"
    )
    max_tokens: int = Field(
        _GOLDEN.max_tokens, ge=1, le=1024, description="tokens of the answer at most"
    )


class ModelSection(Section):
    """`[[models]]`: one model to serve."""

    source: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="where the model comes from, see [models](models.md); a URL is an upstream, and"
        " where there are others it may be left out",
    )
    name: Annotated[str, Field(pattern=f"^{MODEL_NAME}$"), AfterValidator(_unreserved)] | None = (
        Field(
            None, description="name in requests; unset: from the source, which must be there then"
        )
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
    routing: RoutingSection = RoutingSection()
    upstreams: tuple[UpstreamSection, ...] = Field(
        (),
        max_length=MAX_UPSTREAMS,
        description="servers that answer for the model, see `[[models.upstreams]]`",
    )

    @property
    def has_workers(self) -> bool:
        return self.source is not None and not is_url(self.source)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for place, complaint in self._complaints():
            error = PydanticCustomError(CONFLICT, complaint)
            detail = InitErrorDetails(type=error, loc=place, input=None)
            raise ValidationError.from_exception_data(type(self).__name__, [detail])
        return self

    def _complaints(self) -> Iterator[tuple[tuple[int | str, ...], str]]:
        if self.source is None and not self.upstreams:
            yield ("source",), "field required where there are no upstreams"
        if self.source is None and self.name is None:
            yield ("name",), "field required where there is no source"
        if not self.has_workers:
            for key in sorted(_OF_WORKERS & self.model_fields_set):
                yield (key,), "does nothing where a model has upstreams only"
        yield from complaints(self.source, self.upstreams, has_workers=self.has_workers)
