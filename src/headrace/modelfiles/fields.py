"""Reads typed values out of an untrusted mapping. Every refusal names the file and the key."""

import math
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import ModelFileError

_MOST: Final = 2**31 - 1


class Fields:
    """The values of one file under their keys; `defaults` stand in for missing ones."""

    def __init__(
        self,
        where: str,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
    ) -> None:
        self.where = where
        self._values = values
        self._defaults = defaults or {}
        self._prefix = prefix

    def get(self, key: str) -> Any:  # noqa: ANN401  # a file can hold anything
        """The raw value; a null that is written down is none, not the default."""
        return self._values.get(self._prefix + key, self._defaults.get(key))

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = _MOST
    ) -> int:
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, value, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value, "a number above 0")
        if not 0 < value < math.inf:
            raise self.error(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a text")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._given(key, {})
        if not isinstance(value, Mapping):
            raise self.error(key, value, "a mapping")
        return value

    def error(self, key: str, found: object, expected: str) -> ModelFileError:
        shown = "missing" if found is None else repr(found)[:80]
        return ModelFileError(f"{self.where}: {self._prefix + key} is {shown}; expected {expected}")

    def _given(self, key: str, default: object) -> Any:  # noqa: ANN401  # as get
        value = self.get(key)
        return default if value is None else value
