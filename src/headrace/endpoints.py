"""What the registry and the router say to each other of where a version's answers come from.

Plain values and protocols: the registry owns workers and knows no upstream, the router chooses
between both and knows no version.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from yarl import URL

from headrace.errors import ConfigurationError, HeadraceError
from headrace.generation import Chunk, GenerationRequest, LanguageModel

DialectName = Literal["openai", "compatible", "vllm", "llama.cpp", "headrace"]
StrategyName = Literal[
    "round_robin", "weighted", "least_latency", "least_load", "consistent_hash", "prefix_affinity"
]
Migration = Literal["tokens", "text", "off"]
"""How a stream goes on elsewhere when its endpoint dies: only where the tokens so far are known,
else also by its text, or never."""
BreakerState = Literal["closed", "open", "half_open"]
EndpointKind = Literal["worker", "upstream"]

MIN_WEIGHT, MAX_WEIGHT = 1e-4, 1e4  # or zero; within these a sum loses none of its parts

_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How a version's endpoints share its requests; `probe_interval` is in seconds."""

    strategy: StrategyName = "least_load"
    migration: Migration = "text"
    probe_interval: float = 30.0


@dataclass(frozen=True, kw_only=True)
class UpstreamConfig:
    """One server, by its OpenAI base URL such as `https://host/v1`. Times are in seconds.

    `model` is what the upstream calls the model; None: the only one that it lists. `api_key_env`
    names the environment variable that holds the key. `dialect` None: as its list of models tells.
    `first_byte_timeout` is for the first byte of a stream's body, since some upstreams send
    their head at once; `idle_timeout` for each further piece of it. More requests at a time than
    `max_connections` are refused. `ca_file` is trusted besides the system's authorities.
    """

    url: str
    name: str = ""
    weight: float = 1.0
    api_key_env: str | None = None
    model: str | None = None
    dialect: DialectName | None = None
    connect_timeout: float = 5.0
    first_byte_timeout: float = 60.0
    idle_timeout: float = 30.0
    probe_timeout: float = 5.0
    max_connections: int = 1024
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        self._check_url()
        for name in (
            "connect_timeout",
            "first_byte_timeout",
            "idle_timeout",
            "probe_timeout",
        ):
            _require(0 < getattr(self, name) < float("inf"), f"{name} must be above 0")
        is_in_range = self.weight == 0 or MIN_WEIGHT <= self.weight <= MAX_WEIGHT
        _require(is_in_range, f"weight must be 0 or from {MIN_WEIGHT} to {MAX_WEIGHT}")
        _require(self.max_connections >= 1, "max_connections must be at least 1")

    @cached_property
    def base(self) -> URL:
        """With its /v1, without a slash at its end."""
        return URL(self.url.rstrip("/"))

    @cached_property
    def root(self) -> URL:
        """Where the routes are that OpenAI does not have."""
        return URL(self.url.rstrip("/").removesuffix("/v1"))

    @cached_property
    def label(self) -> str:
        """What errors call it."""
        return self.name or self.base.authority

    def _check_url(self) -> None:
        try:
            url = URL(self.url)
        except ValueError as error:
            raise ConfigurationError(f"an upstream's url is none: {error}") from None
        _require(url.scheme in _SCHEMES and bool(url.host), "url must be http:// or https://")
        # A key in the URL would be in every message and log.
        _require(url.user is None and url.password is None, "url must hold no credentials")
        _require(
            not url.query_string and not url.fragment, "url must have no query and no fragment"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint as it is now; `latency` is the average of seconds to the first byte."""

    name: str
    kind: EndpointKind
    is_taking: bool
    breaker: BreakerState
    weight: float
    num_in_flight: int
    tokens_in_flight: int
    latency: float | None
    reason: str | None
    """What its last failed probe or request said, while it takes no requests."""


@dataclass(frozen=True, slots=True)
class RoutingCounts:
    """What a router did since it was made: tries after the first, and answers moved once begun."""

    num_retries: int = 0
    num_moves: int = 0


class Worker(Protocol):
    """A worker's place in a version: the model in its process, of now and of later."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> LanguageModel: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def max_in_flight(self) -> int:
        """Requests that it has at a time, at most."""
        ...

    @property
    def refusal(self) -> HeadraceError | None:
        """None also while it is about to be ready again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRequest:
    """A request in OpenAI's API for an upstream, which is to have it as it came where it can.

    `path` is under the base URL. `model` is what `body` calls the model. `prompt` is the beginning
    of what is asked, for a strategy that looks at it; `num_tokens` an estimate. `adds_usage`: have
    a stream tell it though the body does not ask for it; `adds_token_ids` the same, where the
    upstream is one of us, also where the body asks for them. `resumes`: the body says what was
    answered already, which only such an upstream does not ignore.
    """

    path: str
    body: bytes
    model: str
    request_id: str
    is_stream: bool
    deadline: float | None = None
    user: str | None = None
    prompt: str = ""
    num_tokens: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    adds_usage: bool = False
    adds_token_ids: bool = False
    resumes: bool = False


class Relayed(Protocol):
    """An upstream's answer to a request that was passed on as it came: its body, in pieces.

    Its status was 200. Closing it early aborts the request.
    """

    @property
    def content_type(self) -> str: ...

    @property
    def has_token_ids(self) -> bool:
        """Whether they were added to what the client asked for."""
        ...

    async def forward(self, take: Callable[[bytes], bool]) -> bool:
        """Give `take` each piece until it wants a pause (False) or there are no more (True)."""
        ...

    async def aclose(self) -> None: ...


class Router(LanguageModel, Protocol):
    """The endpoints of one version, taken together as one model."""

    async def start(self) -> None:
        """Begin to probe the upstreams; without workers, wait until one of them answers."""
        ...

    def worker_changed(self, worker: Worker) -> None: ...

    @property
    def migration(self) -> Migration: ...

    @property
    def relays(self) -> bool:
        """Whether requests may be passed on as they came: every endpoint is an upstream."""
        ...

    async def relay(self, request: RelayRequest) -> Relayed:
        """Pass it on, to another upstream too where the first fails before its answer begins."""
        ...

    @property
    def refusal(self) -> HeadraceError | None:
        """Why a new request cannot be taken; a short wait is no reason."""
        ...

    @property
    def is_answering(self) -> bool: ...

    def statuses(self) -> list[EndpointStatus]: ...

    @property
    def counts(self) -> RoutingCounts: ...

    def go_on(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Generate the rest of an answer that was relayed until its upstream failed."""
        ...

    async def close(self) -> None: ...


NewRouter = Callable[
    [str, RoutingConfig, Sequence[Worker], Sequence[UpstreamConfig], Callable[[], None]],
    Awaitable[Router],
]
"""Makes the router of a version: its model id, its workers, its upstreams, and what to call when
one of the upstreams comes or goes. It may take a while, since numpy takes long to import."""


def _require(condition: bool, complaint: str) -> None:  # noqa: FBT001  # reads as an assertion
    if not condition:
        raise ConfigurationError(f"upstream: {complaint}")
