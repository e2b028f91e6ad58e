"""The settings of one server: a TOML file, then the environment, then flags; the last one wins.

Only this package reads the environment; below it there are only values. A key that is unknown, of
the wrong type or out of range is one sentence that names the key and where it was set.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigurationError
from headrace.registry.spec import ModelSpec
from headrace.settings.api_keys import ApiKeys, read_api_keys
from headrace.settings.layers import (
    Layer,
    environment_layer,
    file_layer,
    flag_layer,
    origin,
    overlay,
    validate,
)
from headrace.settings.models import MODEL_NAME, EngineSection, GoldenSection, ModelSection
from headrace.settings.sections import (
    NOT_SUPPORTED_YET,
    LimitsSection,
    ServerSection,
    StorageSection,
    TelemetrySection,
    default_state_dir,
)
from headrace.settings.specs import model_spec, model_specs, requested_spec
from headrace.settings.upstreams import RoutingSection, UpstreamSection

__all__ = [
    "MODEL_NAME",
    "NOT_SUPPORTED_YET",
    "ApiKeys",
    "EngineSection",
    "GoldenSection",
    "LimitsSection",
    "ModelSection",
    "RoutingSection",
    "ServerSection",
    "Settings",
    "StorageSection",
    "TelemetrySection",
    "UpstreamSection",
    "default_state_dir",
    "is_loopback",
    "load_settings",
    "model_spec",
    "requested_spec",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a server is started with."""

    server: "ServerSection"
    storage: "StorageSection"
    limits: "LimitsSection"
    telemetry: "TelemetrySection"
    models: tuple[ModelSpec, ...]
    api_keys: ApiKeys = field(default_factory=lambda: ApiKeys({}))


def load_settings(config: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Read the file, the environment and the flags; ConfigurationError says what is wrong.

    `overrides` has the shape of the file; its `engine` is worked into every model that has workers.
    """
    file, environment = file_layer(config), environment_layer()
    below = overlay(file.values, environment.values)
    models = below.get("models")
    flags = flag_layer(overrides, models if isinstance(models, list) else ())
    layers = (file, environment, flags)
    sections = validate(overlay(below, flags.values), layers)
    _refuse_an_open_host(sections.server, layers)
    return Settings(
        server=sections.server,
        storage=sections.storage,
        limits=sections.limits,
        telemetry=sections.telemetry,
        models=model_specs(sections, layers),
        api_keys=read_api_keys(sections.models, layers),
    )


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
