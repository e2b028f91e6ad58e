"""The settings of one server: a TOML file, then the environment, then flags; the last one wins.

Only this file reads the environment; below it there are only values. A key that is unknown, of the
wrong type or out of range is one sentence that names the key and where it was set.
"""

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from headrace.engine.config import EngineConfig
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig, ExecutorName, KVCachePrecision, Precision
from headrace.modelfiles.sources import default_name
from headrace.registry.spec import ModelSpec

ENV_PREFIX = "HEADRACE_"
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"

_ENGINE = EngineConfig()
_EXECUTOR = ExecutorConfig()
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a server is started with."""

    server: "ServerSection"
    limits: "LimitsSection"
    telemetry: "TelemetrySection"
    models: tuple[ModelSpec, ...]


def load_settings(config: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Read the file, the environment and the flags; ConfigurationError says what is wrong.

    `overrides` has the shape of the file; its `engine` is worked into every model.
    """
    file, environment = _file_layer(config), _environment_layer()
    below = _overlay(file.values, environment.values)
    models = below.get("models")
    flags = _flag_layer(overrides, num_models=len(models) if isinstance(models, list) else 0)
    layers = (file, environment, flags)
    sections = _validate(_overlay(below, flags.values), layers)
    _refuse_an_open_host(sections.server, layers)
    return Settings(
        server=sections.server,
        limits=sections.limits,
        telemetry=sections.telemetry,
        models=_model_specs(sections, layers),
    )


def model_spec(source: str, engine: Mapping[str, Any]) -> ModelSpec:
    """One model without a server, its `[models.engine]` given; ConfigurationError names the key."""
    layer = _Layer(
        {"models": [{"source": source, "engine": engine}]}, lambda location: str(location[-1])
    )
    (spec,) = _model_specs(_validate(layer.values, (layer,)), (layer,))
    return spec


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


class LimitsSection(_Section):
    """`[limits]`: how much may wait, per model."""

    max_queued_requests: int = Field(
        _ENGINE.max_queued_requests, ge=1, description="requests that may wait; more is a 503"
    )
    max_queued_tokens: int = Field(
        _ENGINE.max_queued_tokens, ge=1, description="prompt tokens that may wait; more is a 503"
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
        description="bytes for the KV cache, also as `512MiB`; unset: chosen for the machine",
    )
    num_threads: int | None = Field(
        None, ge=1, description="compute threads; unset: every core the process may use"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="longest context in tokens; unset: what the model allows"
    )
    max_num_seqs: int = Field(_ENGINE.max_num_seqs, ge=1, description="sequences in one step")
    max_num_batched_tokens: int = Field(
        _ENGINE.max_num_batched_tokens, ge=1, description="tokens in one step"
    )
    prefix_caching: bool = Field(
        _ENGINE.prefix_caching, description="reuse the KV blocks of equal prompt beginnings"
    )


class ModelSection(_Section):
    """`[[models]]`: one model to serve."""

    source: str = Field(
        min_length=1, description="where the model comes from, see [models](models.md)"
    )
    name: str | None = Field(
        None, pattern=rf"^{MODEL_NAME}$", description="name in requests; unset: from the source"
    )
    version: int = Field(1, ge=1, description="number after the `@` of the model id")
    engine: EngineSection = EngineSection()


class Sections(_Section):
    """The whole file."""

    server: ServerSection = Field(default_factory=ServerSection)
    limits: LimitsSection = LimitsSection()
    telemetry: TelemetrySection = TelemetrySection()
    models: tuple[ModelSection, ...] = ()


NOT_SUPPORTED_YET = frozenset(
    {
        "auth",
        "jobs",
        "storage",
        "server.tls_certfile",
        "server.tls_keyfile",
        "server.workers_dir",
        "limits.requests_per_minute",
        "limits.tokens_per_minute",
        "telemetry.otlp_endpoint",
        "models.batching",
        "models.replicas",
        "models.retain",
        "models.routing",
        "models.runtime",
        "models.tags",
        "models.upstreams",
        "models.warmup",
        "models.engine.executor=torch",
    }
)
"""Keys, and values of keys, that are part of the plan and have nothing behind them so far."""


class _Environment(Sections, BaseSettings):
    """The same keys, as pydantic-settings reads them from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid"
    )


Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    """The values that one place sets, and how a person finds a key of it again."""

    values: Mapping[str, Any]
    name: Callable[[Location], str]

    def holds(self, location: Location) -> bool:
        node: Any = self.values
        for key in location:
            if isinstance(node, list):
                node = dict(enumerate(node))
            if not isinstance(node, Mapping) or key not in node:
                return False
            node = node[key]
        return True


def _file_layer(path: Path | None) -> _Layer:
    if path is None:
        return _Layer({}, _dotted)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    layer = _Layer(values, lambda location: f"{path}: {_dotted(location)}")
    try:
        # JSON keeps what TOML has typed, so strictness refuses port = "8000" and port = true.
        Sections.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise _configuration_error(error.errors()[0], (layer,)) from None
    return layer


def _environment_layer() -> _Layer:
    try:
        values = EnvSettingsSource(_Environment)()
    except SettingsError as error:
        section = str(error).split('"')[1]
        raise ConfigurationError(f"{ENV_PREFIX}{section.upper()}: should be JSON") from None
    models = values.get("models")
    if isinstance(models, Mapping):  # HEADRACE_MODELS__0__SOURCE
        values["models"] = {int(k) if k.isdigit() else k: model for k, model in models.items()}
    for name in os.environ:
        section, nested, _ = name.upper().removeprefix(ENV_PREFIX).partition("__")
        if name.upper().startswith(ENV_PREFIX) and nested:
            values.setdefault(section.lower(), {})  # an unknown section is refused below
    return _Layer(values, _environment_variable)


def _flag_layer(overrides: Mapping[str, Any], num_models: int) -> _Layer:
    values = dict(overrides)
    engine = values.pop("engine", {})
    if "models" in values:
        values["models"] = [{**model, "engine": engine} for model in values["models"]]
    elif engine:
        values["models"] = {index: {"engine": engine} for index in range(num_models)}
    return _Layer(values, _flag)


def _dotted(location: Location) -> str:
    return ".".join(str(key) for key in location)


def _environment_variable(location: Location) -> str:
    return ENV_PREFIX + "__".join(str(key).upper() for key in location)


def _flag(location: Location) -> str:
    if location[0] == "models" and "engine" not in location:
        return "SOURCE"
    return "--" + str(location[-1]).replace("_", "-")


def _overlay(below: Any, above: Any) -> Any:  # noqa: ANN401 - values of any file
    """Merge tables key by key, and a list by position where `above` numbers its items."""
    if not isinstance(above, Mapping):
        return above
    if above and all(isinstance(key, int) for key in above):
        items = dict(enumerate(below if isinstance(below, list) else ()))
        items |= {key: _overlay(items.get(key), above[key]) for key in above}
        return [items[key] for key in sorted(items)]
    table = below if isinstance(below, Mapping) else {}
    return {**table, **{key: _overlay(table.get(key), above[key]) for key in above}}


def _validate(values: Mapping[str, Any], layers: Sequence[_Layer]) -> Sections:
    try:
        return Sections.model_validate(values)
    except ValidationError as error:
        raise _configuration_error(error.errors()[0], layers) from None


def _configuration_error(error: ErrorDetails, layers: Sequence[_Layer]) -> ConfigurationError:
    location = error["loc"]
    return ConfigurationError(f"{_origin(location, layers)}: {_sentence(error)}")


def _origin(location: Location, layers: Sequence[_Layer]) -> str:
    """The name of the key in the last layer that sets it, or that sets what it is missing from."""
    for length in range(len(location), 0, -1):
        for layer in reversed(layers):
            if layer.holds(location[:length]):
                return layer.name(location)
    return _dotted(location)


def _sentence(error: ErrorDetails) -> str:
    plain = ".".join(key for key in error["loc"] if isinstance(key, str))
    if {plain, f"{plain}={error['input']}"} & NOT_SUPPORTED_YET:
        return "not supported yet"
    if error["type"] == "extra_forbidden":
        return "unknown key" + _suggestion(error["loc"])
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    found = "" if error["type"] == "missing" else f", not {error['input']!r:.80}"
    return message[0].lower() + message[1:] + found


def _suggestion(location: Location) -> str:
    section: type[BaseModel] = Sections
    for key in location[:-1]:
        if isinstance(key, str):
            section = _SECTIONS[key]
    close = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


_SECTIONS: dict[str, type[BaseModel]] = {
    "server": ServerSection,
    "limits": LimitsSection,
    "telemetry": TelemetrySection,
    "models": ModelSection,
    "engine": EngineSection,
}


def _refuse_an_open_host(server: ServerSection, layers: Sequence[_Layer]) -> None:
    if server.allow_unauthenticated or is_loopback(server.host):
        return
    raise ConfigurationError(
        f"{_origin(('server', 'host'), layers)}: {server.host} can be reached by other machines and"
        " there is no authentication; use 127.0.0.1, or permit it with --allow-unauthenticated"
        " (server.allow_unauthenticated)"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost counts as open."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _model_specs(sections: Sections, layers: Sequence[_Layer]) -> tuple[ModelSpec, ...]:
    if not sections.models:
        raise ConfigurationError(
            "nothing to serve: name a source, as in `headrace serve smollm2`, or a [[models]] table"
        )
    specs = tuple(_model_spec(model, sections.limits) for model in sections.models)
    seen: set[tuple[str, int]] = set()
    for index, spec in enumerate(specs):
        if (spec.name, spec.version) in seen:
            raise ConfigurationError(
                f"{_origin(('models', index, 'name'), layers)}: {spec.name}@{spec.version} is there"
                " twice; name one of them otherwise (NAME=SOURCE)"
            )
        seen.add((spec.name, spec.version))
    return specs


def _model_spec(model: ModelSection, limits: LimitsSection) -> ModelSpec:
    engine = model.engine
    return ModelSpec(
        name=model.name or _derived_name(model.source),
        source=model.source,
        version=model.version,
        engine=EngineConfig(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            prefix_caching=engine.prefix_caching,
            max_queued_requests=limits.max_queued_requests,
            max_queued_tokens=limits.max_queued_tokens,
        ),
        executor=ExecutorConfig(
            executor=engine.executor,
            precision=engine.precision,
            kv_cache_precision=engine.kv_cache_precision,
            kv_cache_memory=engine.kv_cache_memory,
            num_threads=engine.num_threads,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
        ),
    )


def _derived_name(source: str) -> str:
    name = default_name(source)
    if re.fullmatch(MODEL_NAME, name) is None:
        raise ConfigurationError(
            f"{source}: {name!r} cannot be a model's name; give it one, as in chat={source}"
        )
    return name
