import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.stats.histogram import GROWTH, LARGEST, NUM_BUCKETS, SMALLEST, Histogram

values = st.lists(st.floats(0, 1e9), max_size=50)


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(values)
def test_a_value_lies_between_the_edges_of_its_rank(values: list[float]) -> None:
    histogram = histogram_of(values)
    for rank, value in enumerate(sorted(values), start=1):
        low, high = histogram.edges(rank)
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
        assert high == math.inf or low == 0 or high / low == pytest.approx(GROWTH)


@given(values, values)
def test_merged_histograms_are_those_of_one_stream(first: list[float], second: list[float]) -> None:
    merged = histogram_of(first)
    merged.merge(histogram_of(second))
    assert merged == histogram_of(first + second)


@given(values)
def test_they_come_back_from_json_as_they_were(values: list[float]) -> None:
    histogram = histogram_of(values)
    assert msgspec.json.decode(msgspec.json.encode(histogram), type=Histogram) == histogram


def test_days_of_any_values_stay_small() -> None:
    spread = np.exp(np.random.default_rng(9).uniform(-40, 40, 50_000))
    histogram = histogram_of([0.0, SMALLEST, LARGEST, math.inf, *spread.tolist()])
    assert len(histogram.counts) == NUM_BUCKETS == 1165
    assert set(histogram.counts) == set(range(NUM_BUCKETS))
