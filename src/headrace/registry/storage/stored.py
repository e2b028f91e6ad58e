"""What a server remembers of its models, as plain values. Knows no database.

Apart from the store, because a database library takes long to import and these are needed at once.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.errors import ConfigurationError
from headrace.registry.spec import ModelSpec

StoredState = Literal["loading", "ready", "deprecated", "failed"]
ChangeKind = Literal["load", "swap", "rollback", "unload", "replace", "fallback", "declare"]
Outcome = Literal["running", "done", "failed", "undone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One version; which of them is active is told by its model alone."""

    spec: ModelSpec
    state: StoredState
    is_declared: bool  # in the configuration, not loaded at run time
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A name with its versions; `active` and `previous` are versions of it, or None."""

    name: str
    declaration: str
    active: int | None
    previous: int | None
    versions: tuple[StoredVersion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something done to a model, by whom and with what end; times are Unix times."""

    id: int
    kind: ChangeKind
    name: str
    previous: str | None  # a model id
    active: str | None  # a model id
    who: str
    started_at: float
    ended_at: float | None  # of an undone change nobody knows it
    outcome: Outcome
    detail: str | None


def declaration_digest(specs: Iterable[ModelSpec]) -> str:
    """Equal for equal declarations, in whatever order, process and release."""
    declared = sorted(_ENCODER.encode(_chosen(spec)) for spec in specs)
    return hashlib.sha256(b"\n".join(declared)).hexdigest()


def spec_to_json(spec: ModelSpec) -> str:
    return _ENCODER.encode(asdict(spec)).decode()  # fields alone: some cache what they derive


def spec_from_json(text: str) -> ModelSpec:
    """Raise msgspec.DecodeError for what another release wrote and this one cannot read."""
    try:
        return _DECODER.decode(text)
    except ConfigurationError as error:  # an upstream checks itself
        raise msgspec.ValidationError(error.message) from None


def _chosen(value: object) -> object:
    """Only what differs from the defaults, so that a setting we add later changes no digest."""
    if isinstance(value, tuple):
        return [_chosen(each) for each in value]
    if not is_dataclass(value):
        return value
    values = {field: getattr(value, field.name) for field in fields(value)}
    return {field.name: _chosen(each) for field, each in values.items() if each != _default(field)}


def _default(field: Field[Any]) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


def _encode_path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a spec with a {type(value).__name__} cannot be stored")


def _decode_path(kind: type, value: object) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"a spec with a {kind.__name__} cannot be read")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_path, order="deterministic")
_DECODER = msgspec.json.Decoder(ModelSpec, dec_hook=_decode_path)
