"""Counter-based random numbers: each is a pure function of what it is for, whatever the batch.

The mixing function is splitmix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", 2014).
"""

import numpy as np
from numpy.typing import NDArray

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SEED_MASK = (1 << 64) - 1


def stream_key(seed: int, index: int) -> int:
    """The key of one sequence's random numbers: its request's seed and its index there."""
    keys = np.array([seed & _SEED_MASK], dtype=np.uint64)
    indices = np.array([index], dtype=np.uint64)
    return int(_mix(_mix(keys) + indices * _STRIDE)[0])


def uniforms(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each pair of key and counter."""
    bits = _mix(_mix(keys + counters * _STRIDE) ^ keys)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + _STRIDE
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
