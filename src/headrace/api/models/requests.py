"""What a request to the models' routes says, and what a browser's request may not say unasked."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from headrace.api.body import require_json
from headrace.api.errors import ForeignOriginError
from headrace.api.exchange import exchange_of
from headrace.api.models.schema import LoadRequest, SwapRequest
from headrace.errors import (
    ConfigurationError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
)
from headrace.registry.changes.admission import require_allowed, require_allowed_upstream
from headrace.registry.spec import ModelSpec
from headrace.settings import MODEL_NAME, EngineSection, Settings, is_loopback, requested_spec

DEFAULT_HISTORY = 100
MAX_HISTORY = 1000
_HISTORY_DIGITS = len(str(MAX_HISTORY))
_MODEL_ID = re.compile(r"(.+)@([1-9][0-9]{0,9})", re.DOTALL)


def new_spec(fields: Mapping[str, Any], settings: Settings) -> ModelSpec:
    """What a client may have of what it describes; blocks. InvalidRequestError names the field."""
    _refuse_files(fields)
    spec = requested_spec(fields, settings.limits)
    if spec.has_workers:
        declared = {model.source for model in settings.models}
        require_allowed(spec.source, roots=settings.server.model_roots, declared=declared)
    _require_allowed_upstreams(spec, fields, settings)
    return spec


def load_fields(body: LoadRequest, next_version: int) -> dict[str, Any]:
    """The keys of a `[[models]]` table."""
    return {"version": next_version, **msgspec.to_builtins(body)}


def queue_fields(body: SwapRequest) -> dict[str, Any] | None:
    """The same of a version to be loaded in place of the old one; None to swap to one that is."""
    fields = _run_fields(body)
    if body.mode == "queue" and (body.source is not None or body.upstreams):
        return {**fields, **_name_and_version(body.model_id)}
    for field in fields:
        raise InvalidRequestError(
            f"{field}: a version that is loaded stays as it is; mode queue with a source or with"
            " upstreams loads it.",
            param=field,
        )
    return None


@contextmanager
def naming_model(field: str) -> Iterator[None]:
    """Have a model that is not there be a fault of the field that names it."""
    try:
        yield
    except ModelNotFoundError as error:
        raise ModelNotFoundError(error.message, param=field) from None


@contextmanager
def faults_of_description() -> Iterator[None]:
    """Have what cannot be loaded be a fault of the field that describes it."""
    try:
        yield
    except ModelFileError as error:
        raise InvalidRequestError(error.message, param="source") from None
    except ConfigurationError as error:
        if error.param not in EngineSection.model_fields:
            raise
        raise InvalidRequestError(error.message, param=f"engine.{error.param}") from None


def history_name(request: Request) -> str | None:
    name = request.query_params.get("name")
    if name is not None and re.fullmatch(MODEL_NAME, name) is None:
        raise InvalidRequestError(
            f"name: expected a model's name, such as chat, got {name[:80]!r}.", param="name"
        )
    return name


def history_limit(request: Request) -> int:
    value = request.query_params.get("limit", str(DEFAULT_HISTORY))
    is_number = value.isascii() and value.isdecimal() and len(value) <= _HISTORY_DIGITS
    if not (is_number and 1 <= int(value) <= MAX_HISTORY):
        raise InvalidRequestError(
            f"limit: expected a whole number from 1 to {MAX_HISTORY}, got {value[:50]!r}.",
            param="limit",
        )
    return int(value)


def refuse_other_sites(request: Request) -> None:
    """Guard a POST that has no body to guard it.

    A browser says where each of its POSTs comes from, and asks us before it sends JSON for another
    site; what is no browser need not say that it sends JSON when it sends nothing.
    """
    exchange = exchange_of(request.scope)
    if exchange.header("Origin") is not None or exchange.header("Sec-Fetch-Site") is not None:
        require_json(exchange)


def refuse_foreign_pages(request: Request, server_host: str) -> None:
    """Guard a server of this machine alone from pages whose name was made to lead to it.

    A browser then takes them for the server's own, but says in `Origin` what they are called.
    """
    origin = exchange_of(request.scope).header("Origin")
    if origin is None or not is_loopback(server_host):
        return
    host = urlsplit(origin).hostname
    if host is None or not (is_loopback(host) or host == server_host):
        raise ForeignOriginError("Pages of other machines may not change models.")


def who(request: Request) -> str:
    """The client as history names it."""
    return f"http {request.client.host}" if request.client else "http"


def _refuse_files(fields: Mapping[str, Any]) -> None:
    """Before anything looks for one: an answer must not tell what this machine has."""
    for number, upstream in enumerate(fields.get("upstreams") or ()):
        if "ca_file" in upstream:
            field = f"upstreams.{number}.ca_file"
            raise InvalidRequestError(f"{field}: only the configuration names files.", param=field)


def _require_allowed_upstreams(
    spec: ModelSpec, fields: Mapping[str, Any], settings: Settings
) -> None:
    configured = [each for model in settings.models for each in model.upstreams]
    declared = {(each.base, each.api_key_env) for each in configured}
    own = [f"upstreams.{number}.url" for number in range(len(fields.get("upstreams") or ()))]
    of_source = ["source"] * (len(spec.upstreams) - len(own))
    for upstream, field in zip(spec.upstreams, of_source + own, strict=True):
        require_allowed_upstream(
            upstream, roots=settings.server.upstream_roots, declared=declared, field=field
        )


def _run_fields(body: SwapRequest) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(body)
    return {name: value for name, value in fields.items() if name not in ("model_id", "mode")}


def _name_and_version(model_id: str) -> dict[str, Any]:
    match = _MODEL_ID.fullmatch(model_id)
    if match is None:
        raise InvalidRequestError(
            f"model_id: expected name@version, as in chat@2, got {model_id[:80]!r}.",
            param="model_id",
        )
    return {"name": match[1], "version": int(match[2])}
