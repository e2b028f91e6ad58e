"""Rotary frequencies with every scaling variant worked in, by the formulas of transformers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError
from headrace.modelfiles.config import Rope

Frequencies = NDArray[np.float64]


def build_rope(
    theta: float, head_dim: int, max_positions: int, scaling: Mapping[str, Any], where: str
) -> Rope:
    """Make the rotary embedding of one layer kind; `where` begins the sentence of an error."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _SCALINGS:
        known = ", ".join(_SCALINGS)
        raise ModelFileError(f"{where}: rope scaling {kind!r} is not supported; supported: {known}")
    with np.errstate(over="ignore"):
        frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    try:
        frequencies, factor = _SCALINGS[kind](frequencies, theta, max_positions, scaling)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelFileError(f"{where}: rope scaling {kind!r} is incomplete: {error!r}") from None
    if not (np.isfinite(frequencies).all() and math.isfinite(factor)):
        raise ModelFileError(f"{where}: rope theta {theta} gives no finite frequencies")
    return Rope(tuple(frequencies.tolist()), factor)


def _unchanged(
    frequencies: Frequencies, _theta: float, _max: int, _scaling: Mapping[str, Any]
) -> tuple[Frequencies, float]:
    """Also dynamic NTK, which changes nothing up to the length that the model was trained for."""
    return frequencies, 1.0


def _linear(
    frequencies: Frequencies, _theta: float, _max: int, scaling: Mapping[str, Any]
) -> tuple[Frequencies, float]:
    return frequencies / float(scaling["factor"]), 1.0


def _llama3(
    frequencies: Frequencies, _theta: float, _max: int, scaling: Mapping[str, Any]
) -> tuple[Frequencies, float]:
    """Slow pairs are stretched, fast ones kept, those between blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies, 1.0


def _yarn(
    frequencies: Frequencies, theta: float, max_positions: int, scaling: Mapping[str, Any]
) -> tuple[Frequencies, float]:
    """YaRN, https://arxiv.org/abs/2309.00071."""
    original = float(scaling.get("original_max_position_embeddings") or max_positions)
    factor = float(scaling.get("factor") or max_positions / original)
    low = _pair_that_turns(scaling.get("beta_fast") or 32, original, theta, len(frequencies))
    high = _pair_that_turns(scaling.get("beta_slow") or 1, original, theta, len(frequencies))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(frequencies) - 1)
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(high - low, 1e-3), 0, 1)
    blended = frequencies / factor * ramp + frequencies * (1 - ramp)
    return blended, _yarn_attention_factor(factor, scaling)


def _pair_that_turns(turns: float, length: float, theta: float, num_pairs: int) -> float:
    """The pair that makes this many full turns over the length."""
    return num_pairs * math.log(length / (turns * 2 * math.pi)) / math.log(theta)


def _yarn_attention_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    mscale, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dims:
        return _mscale(factor, float(mscale)) / _mscale(factor, float(all_dims))
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


_Scaling = Callable[[Frequencies, float, int, Mapping[str, Any]], tuple[Frequencies, float]]
_SCALINGS: dict[str, _Scaling] = {
    "default": _unchanged,
    "linear": _linear,
    "dynamic": _unchanged,
    "llama3": _llama3,
    "yarn": _yarn,
}
