"""The models of a server: what there is, and what can be done to it, as plain values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote, urlencode

import httpx
import msgspec

from headrace.client.connection import Connection, read, refusal
from headrace.errors import HeadraceError
from headrace.registry.changes.safety import SafetyReport, UnsafeSwapError

_MODELS = "/api/v1/models"
_SILENCE = 60.0  # seconds; the event stream of a living server says something every 15


class Models:
    """Everything that can be asked of a server's models; `model` is an id, or a name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> tuple["Model", ...]:
        return read(self._connection.ask("GET", _MODELS), _List).models

    def get(self, model: str) -> "Model":
        return read(self._connection.ask("GET", _path(model)), Model)

    @contextmanager
    def watch(self) -> Iterator[Iterator["Model"]]:
        """Each version as it is, then each that changes; ends when the server ends it."""
        with self._connection.stream("GET", f"{_MODELS}/events", read_timeout=_SILENCE) as events:
            yield (read(event.data, Model) for event in events if event.name == "model")

    def load(
        self,
        name: str,
        source: str | None = None,
        *,
        version: int | None = None,
        **how: Unpack["How"],
    ) -> "Accepted":
        """Begin to load a version, without `version` the next one; `watch` tells how it goes.

        Without a `source` its `upstreams` answer alone.
        """
        body = _said(name=name, source=source, version=version, **how)
        return read(self._connection.ask("POST", f"{_MODELS}/load", body), Accepted)

    def safety(self, model_id: str) -> SafetyReport:
        return read(self._connection.ask("GET", _path(model_id, "swap/safety")), SafetyReport)

    def swap(
        self,
        model_id: str,
        *,
        mode: Literal["switch", "queue"] | None = None,
        source: str | None = None,
        **how: Unpack["How"],
    ) -> "Swap":
        """Make a version the active one; UnsafeSwapError says which check it failed.

        "switch", the default, takes one that is loaded. "queue" ends the old one first, where
        memory cannot hold both: requests wait while the new one, which `source` names, loads.
        """
        body = _said(model_id=model_id, mode=mode, source=source, **how)
        return self._swap("swap", body)

    def rollback(self, name: str) -> "Swap":
        """Make the version active that was so before."""
        return self._swap("rollback", {"name": name})

    def unload(self, model: str) -> tuple["Accepted", ...]:
        """Begin to unload one version, or under a name all of them."""
        return read(self._connection.ask("POST", _path(model, "unload")), _Unloading).models

    def history(self, name: str | None = None, *, limit: int | None = None) -> tuple["Change", ...]:
        """What was changed, the newest first."""
        said = urlencode(_said(name=name, limit=limit), errors="surrogateescape")
        return read(self._connection.ask("GET", f"{_MODELS}/history?{said}"), _History).changes

    def _swap(self, operation: str, body: object) -> "Swap":
        answer = self._connection.ask(
            "POST",
            f"{_MODELS}/{operation}",
            body,
            read_timeout=None,  # a version may have to be loaded first
            explain=_swap_refusal,
        )
        return read(answer, Swap)


class How(TypedDict, total=False):
    """How a version is to run: the keys of `[[models]]`; None is as good as left out."""

    engine: Mapping[str, Any] | None
    replicas: int | None
    retain: Literal["warm", "cold", "none"] | None
    idle_unload_after: float | None  # seconds
    golden: Sequence[Mapping[str, Any]] | None
    routing: Mapping[str, Any] | None
    upstreams: Sequence[Mapping[str, Any]] | None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A worker or an upstream of a version; `reason` says why it gets no requests.

    `latency_seconds` is its average time to the first byte, once there was one.
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
    """One version at one moment; `progress` is the share done, 0 to 1, of `phase`.

    `executor` and `precision` are known once it is loaded, `health_score` (0 to 1) once it was
    probed. Times are Unix times.
    """

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
    endpoints: tuple[Endpoint, ...] = ()


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has begun to do."""

    model_id: str
    state: str


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """`active` answers in place of `previous`."""

    previous: str | None
    active: str
    duration_ms: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change; `outcome` is running, done, failed or, when the server died in it, undone."""

    kind: str
    name: str
    previous: str | None
    active: str | None
    who: str
    started_at: float
    ended_at: float | None
    outcome: str
    detail: str | None


class _List(msgspec.Struct, frozen=True):
    models: tuple[Model, ...]


class _Unloading(msgspec.Struct, frozen=True):
    models: tuple[Accepted, ...]


class _History(msgspec.Struct, frozen=True):
    changes: tuple[Change, ...]


class _UnsafeSwap(msgspec.Struct, frozen=True):
    safety: SafetyReport


def _swap_refusal(response: httpx.Response) -> HeadraceError:
    """UnsafeSwapError where a report comes with it."""
    try:
        return UnsafeSwapError(msgspec.json.decode(response.content, type=_UnsafeSwap).safety)
    except ValueError:  # another refusal
        return refusal(response)


def _path(model: str, operation: str = "") -> str:
    return "/".join(filter(None, (_MODELS, quote(model, "@", errors="surrogateescape"), operation)))


def _said(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
