"""The places that set values, one above the other, and whose fault a wrong one is."""

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.errors import ConfigurationError
from headrace.registry.spec import is_url
from headrace.settings.models import CONFLICT
from headrace.settings.sections import NOT_SUPPORTED_YET, SECRETS, SECTIONS, Sections

ENV_PREFIX = "HEADRACE_"

Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Layer:
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


def file_layer(path: Path | None) -> Layer:
    if path is None:
        return Layer({}, dotted)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from None
    layer = Layer(values, lambda location: f"{path}: {dotted(location)}")
    try:
        # JSON keeps what TOML has typed, so strictness refuses port = "8000" and port = true.
        Sections.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise configuration_error(error.errors()[0], (layer,)) from None
    return layer


def environment_layer() -> Layer:
    if not any(name.upper().startswith(ENV_PREFIX) for name in os.environ):
        return Layer({}, _environment_variable)
    from headrace.settings.environment import read_environment  # noqa: PLC0415 - slow to import

    return Layer(read_environment(), _environment_variable)


def flag_layer(overrides: Mapping[str, Any], models: Sequence[Any]) -> Layer:
    """Of the flags, the engine's go to the models that run one: its own, or else `models`."""
    values = dict(overrides)
    if engine := values.pop("engine", None):
        own = values.get("models")
        models = models if own is None else own
        # Where no model runs an engine, the refusal is to name the flag.
        numbers = [number for number, each in enumerate(models) if _runs_here(each)]
        added = {number: {"engine": engine} for number in numbers or range(len(models))}
        values["models"] = added if own is None else overlay(own, added)
    return Layer(values, _flag)


def overlay(below: Any, above: Any) -> Any:  # noqa: ANN401 - values of any file
    """Merge tables key by key, and a list by position where `above` numbers its items."""
    if not isinstance(above, Mapping):
        return above
    if above and all(isinstance(key, int) for key in above):
        items = dict(enumerate(below if isinstance(below, list) else ()))
        items |= {key: overlay(items.get(key), above[key]) for key in above}
        return [items[key] for key in sorted(items)]
    table = below if isinstance(below, Mapping) else {}
    return {**table, **{key: overlay(table.get(key), above[key]) for key in above}}


def validate(values: Mapping[str, Any], layers: Sequence[Layer]) -> Sections:
    try:
        return Sections.model_validate(values)
    except ValidationError as error:
        raise configuration_error(error.errors()[0], layers) from None


def configuration_error(error: ErrorDetails, layers: Sequence[Layer]) -> ConfigurationError:
    location = error["loc"]
    return ConfigurationError(f"{origin(location, layers)}: {sentence(error, location)}")


def origin(location: Location, layers: Sequence[Layer]) -> str:
    """The name of the key in the last layer that sets it, or that sets what it is missing from."""
    for length in range(len(location), 0, -1):
        for layer in reversed(layers):
            if layer.holds(location[:length]):
                return layer.name(location)
    return dotted(location)


def sentence(error: ErrorDetails, location: Location) -> str:
    """What is wrong with the key that stands at this place of the file."""
    plain = ".".join(key for key in location if isinstance(key, str))
    if {plain, f"{plain}={error['input']}"} & NOT_SUPPORTED_YET:
        return "not supported yet"
    if error["type"] == "extra_forbidden":
        return "unknown key" + _suggestion(location)
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    is_shown = error["type"] not in ("missing", CONFLICT) and plain not in SECRETS
    found = f", not {error['input']!r:.80}" if is_shown else ""
    return message[0].lower() + message[1:] + found


def dotted(location: Location) -> str:
    return ".".join(str(key) for key in location)


def _runs_here(model: Any) -> bool:  # noqa: ANN401 - values of any file
    source = model.get("source") if isinstance(model, Mapping) else None
    return isinstance(source, str) and not is_url(source)


def _suggestion(location: Location) -> str:
    section: type[BaseModel] = Sections
    for key in location[:-1]:
        if isinstance(key, str):
            section = SECTIONS[key]
    close = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _environment_variable(location: Location) -> str:
    return ENV_PREFIX + "__".join(str(key).upper() for key in location)


def _flag(location: Location) -> str:
    if location[0] == "models" and "engine" not in location:
        return "SOURCE"
    if location[-1] == "engine":  # all of them together
        return "an engine flag"
    return "--" + str(location[-1]).replace("_", "-")
