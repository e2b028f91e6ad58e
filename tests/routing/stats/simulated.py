"""Streams of observations, and the real formulas on arrays of them: (streams, looks)."""

from types import ModuleType

import numpy as np
import pytest

from headrace.routing.stats.estimate import Estimate

Array = np.ndarray

LOOKS = 10_000


def on_arrays(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> None:
    """Let the module's own code, which imports these from math, take arrays."""
    for name in names:
        monkeypatch.setattr(module, name, getattr(np, name))


def running(values: Array) -> Estimate:
    """What `Moments` holds after each value of each stream."""
    count = np.arange(1, values.shape[1] + 1)
    centre = values.mean()  # against cancellation; changes nothing else
    values = values - centre
    first, second, third = (np.cumsum(values**power, 1) for power in (1, 2, 3))
    mean = first / count
    variance = (second - first * mean) / np.maximum(count - 1, 1)
    variance[:, 0] = np.inf
    cubes = third - 3 * mean * second + 2 * mean**2 * first
    return Estimate(mean + centre, variance / count, cubes / count**3)


def clustered(users: Array, values: Array) -> Estimate:
    """What `Clusters` holds after each request of each stream, every user a cluster of its own."""
    streams, looks = users.shape
    row = np.arange(streams)
    counts, totals = np.zeros((2, streams, users.max() + 1))
    sums = np.zeros((7, streams))  # of totals^i counts^j over users: tt tc cc, ttt ttc tcc ccc
    total, occupied = np.zeros((2, streams))
    estimates = np.empty((3, streams, looks))
    for i in range(looks):
        c, t, y = counts[row, users[:, i]], totals[row, users[:, i]], values[:, i]
        sums += _powers(t + y, c + 1) - _powers(t, c)
        occupied += c == 0
        total += y
        counts[row, users[:, i]] += 1
        totals[row, users[:, i]] += y
        m = total / (i + 1)
        tt, tc, cc, ttt, ttc, tcc, ccc = sums
        squares = np.maximum(tt - 2 * m * tc + m**2 * cc, 0)
        squares *= occupied / np.maximum(occupied - 1, 1)
        cubes = ttt - 3 * m * ttc + 3 * m**2 * tcc - m**3 * ccc
        estimates[:, :, i] = m, squares / (i + 1) ** 2, cubes / (i + 1) ** 3
    estimates[1, :, 0] = np.inf
    return Estimate(*estimates)


def _powers(t: Array, c: Array) -> Array:
    return np.stack([t * t, t * c, c * c, t**3, t * t * c, t * c * c, c**3])


def after_every_request(candidate: Estimate, stable: Estimate, every: int) -> tuple[Estimate, ...]:
    """Both as they are after each request, one in `every` of which goes to the candidate."""
    looks = np.arange(every, LOOKS + 1)
    num_candidate = looks // every
    num_stable = looks - num_candidate
    return (
        Estimate(*(numbers[:, num_candidate - 1] for numbers in candidate)),
        Estimate(*(numbers[:, num_stable - 1] for numbers in stable)),
    )


def share_that_ever(happens: Array) -> float:
    return float(happens.any(axis=1).mean())
