"""The settings of one server: a TOML file, then the environment, then flags; the last one wins.

Only this package reads the environment; below it there are only values. A key that is unknown, of
the wrong type or out of range is one sentence that names the key and where it was set.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.engine.config import EngineConfig
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.modelfiles.sources import default_name
from headrace.registry.spec import ModelSpec
from headrace.settings.layers import (
    Layer,
    environment_layer,
    file_layer,
    flag_layer,
    origin,
    overlay,
    validate,
)
from headrace.settings.sections import (
    MODEL_NAME,
    NOT_SUPPORTED_YET,
    EngineSection,
    LimitsSection,
    ModelSection,
    Sections,
    ServerSection,
    TelemetrySection,
    default_state_dir,
)

__all__ = [
    "NOT_SUPPORTED_YET",
    "EngineSection",
    "LimitsSection",
    "ModelSection",
    "ServerSection",
    "Settings",
    "TelemetrySection",
    "default_state_dir",
    "is_loopback",
    "load_settings",
    "model_spec",
]


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
    file, environment = file_layer(config), environment_layer()
    below = overlay(file.values, environment.values)
    models = below.get("models")
    flags = flag_layer(overrides, num_models=len(models) if isinstance(models, list) else 0)
    layers = (file, environment, flags)
    sections = validate(overlay(below, flags.values), layers)
    _refuse_an_open_host(sections.server, layers)
    return Settings(
        server=sections.server,
        limits=sections.limits,
        telemetry=sections.telemetry,
        models=_model_specs(sections, layers),
    )


def model_spec(source: str, engine: Mapping[str, Any]) -> ModelSpec:
    """One model without a server, its `[models.engine]` given; ConfigurationError names the key."""
    layer = Layer(
        {"models": [{"source": source, "engine": engine}]}, lambda location: str(location[-1])
    )
    (spec,) = _model_specs(validate(layer.values, (layer,)), (layer,))
    return spec


def _refuse_an_open_host(server: ServerSection, layers: Sequence[Layer]) -> None:
    if server.allow_unauthenticated or is_loopback(server.host):
        return
    raise ConfigurationError(
        f"{origin(('server', 'host'), layers)}: {server.host} can be reached by other machines and"
        " there is no authentication; use 127.0.0.1, or permit it with --allow-unauthenticated"
        " (server.allow_unauthenticated)"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost counts as open."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _model_specs(sections: Sections, layers: Sequence[Layer]) -> tuple[ModelSpec, ...]:
    if not sections.models:
        raise ConfigurationError(
            "nothing to serve: name a source, as in `headrace serve smollm2`, or a [[models]] table"
        )
    specs = tuple(_model_spec(model, sections.limits) for model in sections.models)
    seen: set[tuple[str, int]] = set()
    for index, spec in enumerate(specs):
        if (spec.name, spec.version) in seen:
            raise ConfigurationError(
                f"{origin(('models', index, 'name'), layers)}: {spec.name}@{spec.version} is there"
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
            # A plain number: a worker is told this, and pydantic's types do not cross to it.
            kv_cache_memory=None if engine.kv_cache_memory is None else int(engine.kv_cache_memory),
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
