import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.stats.histogram import GROWTH, Histogram
from headrace.routing.stats.quantiles import estimate, interval, rank_interval
from routing.stats.simulated import LOOKS, share_that_ever

ALPHA = 0.05


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_a_quantile_stays_in_its_sequence_at_every_look(q: float) -> None:
    held = np.array([rank_interval(n, q, ALPHA) for n in range(1, LOOKS + 1)])
    below = np.cumsum(np.random.default_rng(10).random((500, LOOKS)) < q, 1)
    assert share_that_ever((below < held[:, 0]) | (below > held[:, 1])) <= ALPHA
    n = np.arange(1, LOOKS + 1)
    naive = abs(below - q * n) > 1.96 * np.sqrt(q * (1 - q) * n)
    assert share_that_ever(naive[:, 1000:]) > 3 * ALPHA


@given(st.integers(1, 100_000), st.sampled_from([0.5, 0.9, 0.99]))
def test_held_ranks_surround_the_quantiles(count: int, q: float) -> None:
    low, high = rank_interval(count, q, ALPHA)
    assert 0 <= low <= round(q * count) <= high <= count


def test_intervals_in_seconds_hold_the_true_quantiles_and_narrow() -> None:
    latencies = np.random.default_rng(11).lognormal(0, 1, 20_000)
    histogram = histogram_of(latencies.tolist())
    for q, true in ((0.5, 1.0), (0.99, math.exp(2.3263))):
        low, high = interval(histogram, q, ALPHA)
        assert low <= true <= high <= 1.4 * low
        assert np.quantile(latencies, q) <= estimate(histogram, q) * GROWTH
        assert estimate(histogram, q) <= np.quantile(latencies, q) * GROWTH


def test_ties_are_held() -> None:
    low, high = interval(histogram_of([0.5] * 5000), 0.95, ALPHA)
    assert low <= 0.5 <= high <= 0.5 * GROWTH


def test_few_values_leave_the_ends_open() -> None:
    assert interval(Histogram(), 0.5, ALPHA) == (0, math.inf)
    low, high = interval(histogram_of([1.0] * 100), 0.99, ALPHA)
    assert low <= 1
    assert high == math.inf
    assert estimate(Histogram(), 0.5) == 0
