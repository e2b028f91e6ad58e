"""Which arithmetic the native kernels offer, by table, and for whom. Needs no kernels itself."""

from dataclasses import dataclass
from typing import Literal

from headrace.executors.config import ExecutorConfig
from headrace.modelfiles.config import ModelConfig

Mode = Literal["bf16", "w8a16", "w8a8", "w4a16"]
Cache = Literal["bf16", "i8"]

_MODES: dict[str, Mode] = {
    "auto": "w8a16",
    "bf16": "bf16",
    "int8": "w8a16",
    "w8a16": "w8a16",
    "w8a8": "w8a8",
    "w4a16": "w4a16",
}
_CACHES: dict[str, Cache] = {"auto": "bf16", "bf16": "bf16", "u8": "i8", "int8": "i8"}

MAX_HEAD_DIM = 1024


@dataclass(frozen=True, slots=True)
class NativePrecision:
    """How weights are stored and multiplied, and how keys and values are kept."""

    mode: Mode
    cache: Cache


def choose_precision(config: ExecutorConfig) -> NativePrecision:
    """Fill in what was left to us. `misfit` has passed."""
    return NativePrecision(_MODES[config.precision], _CACHES[config.kv_cache_precision])


def misfit(config: ExecutorConfig, model: ModelConfig | None = None) -> str | None:
    """Why the kernels cannot do what is asked for, as half a sentence; None when they can."""
    if config.precision not in _MODES:
        return f"it has no precision {config.precision!r}: use {_listed(_MODES)}"
    if config.kv_cache_precision not in _CACHES:
        asked = config.kv_cache_precision
        return f"it has no kv_cache_precision {asked!r}: use {_listed(_CACHES)}"
    if model is not None and model.head_dim > MAX_HEAD_DIM:
        return f"its heads have at most {MAX_HEAD_DIM} numbers, and this model's {model.head_dim}"
    return None


def _listed(table: dict[str, Mode] | dict[str, Cache]) -> str:
    *most, last = (repr(name) for name in table)
    return f"{', '.join(most)} or {last}"
