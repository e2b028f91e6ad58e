"""Reads the sections' keys from the environment, such as HEADRACE_MODELS__0__SOURCE.

Imported only where such a variable is set: pydantic-settings takes long to import.
"""

import os
from collections.abc import Mapping
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from headrace.errors import ConfigurationError
from headrace.settings.layers import ENV_PREFIX
from headrace.settings.sections import Sections


class _Environment(Sections, BaseSettings):
    """The same keys, as pydantic-settings reads them from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid"
    )


def read_environment() -> dict[str, Any]:
    """The values in the shape of the file, a list's items under their numbers."""
    try:
        values = EnvSettingsSource(_Environment)()
    except SettingsError as error:
        section = str(error).split('"')[1]
        raise ConfigurationError(f"{ENV_PREFIX}{section.upper()}: should be JSON") from None
    values = {section: _numbered(value) for section, value in values.items()}
    for name in os.environ:
        section, nested, _ = name.upper().removeprefix(ENV_PREFIX).partition("__")
        if name.upper().startswith(ENV_PREFIX) and nested:
            values.setdefault(section.lower(), {})  # an unknown section is refused later
    return values


def _numbered(node: Any) -> Any:  # noqa: ANN401 - values of any variable
    """The same, the items of a list under numbers instead of digits."""
    if not isinstance(node, Mapping):
        return node
    return {int(k) if k.isdecimal() else k: _numbered(value) for k, value in node.items()}
