"""`[models.routing]` and `[[models.upstreams]]`, and what must hold among a model's endpoints."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from headrace.endpoints import (
    MAX_WEIGHT,
    MIN_WEIGHT,
    DialectName,
    Migration,
    RoutingConfig,
    StrategyName,
    UpstreamConfig,
)
from headrace.errors import ConfigurationError
from headrace.registry.spec import is_url
from headrace.settings.section import Section, absolute

ENDPOINT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
MAX_UPSTREAMS = 1024  # of one model
MAX_URL = 2048  # characters
MAX_SECONDS = 86_400.0  # of a wait, since a timer can only be set so far

Place = tuple[int | str, ...]

_ROUTING = RoutingConfig()
_UPSTREAM = UpstreamConfig(url="http://localhost/v1")


def _upstream_url(url: str) -> str:
    try:
        return UpstreamConfig(url=url).url
    except ConfigurationError as error:
        raise ValueError(error.message.removeprefix("upstream: url ")) from None


def _weight(weight: float) -> float:
    if 0 < weight < MIN_WEIGHT:
        raise ValueError(f"must be 0 or at least {MIN_WEIGHT}")
    return weight


UpstreamUrl = Annotated[str, Field(max_length=MAX_URL), AfterValidator(_upstream_url)]


def _seconds(default: float, meaning: str) -> float:
    field: float = Field(
        default, gt=0, le=MAX_SECONDS, allow_inf_nan=False, description=f"seconds {meaning}"
    )
    return field


class RoutingSection(Section):
    """`[models.routing]`: how a model's workers and upstreams share its requests."""

    strategy: StrategyName = Field(
        _ROUTING.strategy,
        description="which endpoint a request goes to: `round_robin`, `weighted`,"
        " `least_latency`, `least_load`, `consistent_hash` or `prefix_affinity`",
    )
    migration: Migration = Field(
        _ROUTING.migration,
        description="how a stream goes on when its endpoint dies: `tokens` only where the tokens so"
        " far are known, `text` else by their text, `off` never",
    )
    probe_interval: float = Field(
        _ROUTING.probe_interval,
        ge=0.1,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="seconds between two probes of an upstream's health",
    )


class UpstreamSection(Section):
    """`[[models.upstreams]]`: a server that answers for the model, beside its workers if any."""

    url: UpstreamUrl = Field(
        description="its OpenAI base URL, such as `https://host/v1`, without a key in it"
    )
    name: Annotated[str, Field(pattern=f"^{ENDPOINT_NAME}$")] | None = Field(
        None, description="what status, metrics and errors call it; unset: host and port of the URL"
    )
    weight: Annotated[float, AfterValidator(_weight)] = Field(
        _UPSTREAM.weight,
        ge=0,
        le=MAX_WEIGHT,
        allow_inf_nan=False,
        description="its share where the strategy goes by weights; a worker's is 1",
    )
    api_key_env: Annotated[str, Field(pattern=f"^{VARIABLE_NAME}$")] | None = Field(
        None, description="the environment variable that holds its API key; unset: it needs none"
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="what it calls the model; unset: the only one that it lists",
    )
    dialect: DialectName | None = Field(
        None,
        description="which server it is: `openai`, `compatible`, `vllm`, `llama.cpp` or"
        " `headrace`; unset: as its list of models tells",
    )
    connect_timeout: float = _seconds(_UPSTREAM.connect_timeout, "to connect")
    first_byte_timeout: float = _seconds(
        _UPSTREAM.first_byte_timeout, "to the first byte of a stream"
    )
    idle_timeout: float = _seconds(_UPSTREAM.idle_timeout, "between two pieces of an answer")
    probe_timeout: float = _seconds(_UPSTREAM.probe_timeout, "for a probe's answer")
    max_connections: int = Field(
        _UPSTREAM.max_connections,
        ge=1,
        le=65535,
        description="requests that it gets at a time; more are refused",
    )
    ca_file: Annotated[Path, AfterValidator(absolute)] | None = Field(
        None,
        description="certificates to trust besides the system's; absolute, or begins with `~`",
    )

    @property
    def config(self) -> UpstreamConfig:
        return UpstreamConfig(**{**self.model_dump(), "name": self.name or ""})


def upstream_configs(
    source: str | None, sections: Sequence[UpstreamSection]
) -> tuple[UpstreamConfig, ...]:
    """Every upstream of a model; a source that is a URL is the first of them."""
    named = () if source is None or not is_url(source) else (UpstreamConfig(url=source),)
    return named + tuple(section.config for section in sections)


def complaints(
    source: str | None, sections: Sequence[UpstreamSection], *, has_workers: bool
) -> Iterator[tuple[Place, str]]:
    """What is wrong among a model's endpoints: the key's place in the model, and why."""
    if source is not None and is_url(source):
        try:
            _upstream_url(source)
        except ValueError as error:
            yield ("source",), str(error)
            return
    upstreams = upstream_configs(source, sections)
    for number in _named_as_another(upstreams):
        place = ("upstreams", number - (len(upstreams) - len(sections)), "name")
        label = upstreams[number].label
        yield place, f"another upstream of the model is {label} too; give one of them a name"
    if upstreams and not has_workers and not any(upstream.weight for upstream in upstreams):
        yield ("upstreams",), "the weights sum to 0, so that no request could go anywhere"


def _named_as_another(upstreams: Sequence[UpstreamConfig]) -> Iterator[int]:
    known: set[str] = set()
    for number, upstream in enumerate(upstreams):
        if upstream.label in known:
            yield number
        known.add(upstream.label)
