"""The upstreams' API keys: read once from the environment, and given for their own URLs alone."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from yarl import URL

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError
from headrace.settings.layers import Layer, Location, origin
from headrace.settings.models import ModelSection

Pair = tuple[URL, str]
"""An upstream's base URL and the variable that the configuration names beside it."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """What the configuration's `api_key_env` stood for when the server was started."""

    _keys: Mapping[Pair, str] = field(repr=False)  # a key in a log is a key lost

    def of(self, upstream: UpstreamConfig) -> str | None:
        """None for an upstream that needs none.

        ConfigurationError unless the configuration names this variable beside this URL: what was
        stored, or came from a client, must not take a key elsewhere.
        """
        if upstream.api_key_env is None:
            return None
        key = self._keys.get((upstream.base, upstream.api_key_env))
        if key is None:
            raise ConfigurationError(
                f"{upstream.label}: the configuration names no api_key_env"
                f" {upstream.api_key_env} beside {upstream.url}"
            )
        return key


def read_api_keys(models: Sequence[ModelSection], layers: Sequence[Layer]) -> ApiKeys:
    """ConfigurationError names a variable that is not set or holds no key, never what it holds."""
    keys: dict[Pair, str] = {}
    for location, upstream, variable in _named(models):
        key = os.environ.get(variable)
        if key is None or not _fits_a_header(key):
            problem = "is not set" if key is None else "is empty or holds what a header cannot"
            name = origin(location, layers)
            raise ConfigurationError(f"{name}: the environment variable {variable} {problem}")
        keys[upstream.base, variable] = key
    return ApiKeys(keys)


def _named(models: Sequence[ModelSection]) -> Iterator[tuple[Location, UpstreamConfig, str]]:
    for number, model in enumerate(models):
        for place, section in enumerate(model.upstreams):
            if section.api_key_env is not None:
                location = ("models", number, "upstreams", place, "api_key_env")
                yield location, section.config, section.api_key_env


def _fits_a_header(key: str) -> bool:
    return key.isascii() and key.isprintable() and key.strip() == key != ""
