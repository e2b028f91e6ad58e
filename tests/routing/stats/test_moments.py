import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.stats.moments import Moments

values = st.lists(st.floats(-1e6, 1e6), max_size=30)


def moments_of(values: list[float]) -> Moments:
    moments = Moments()
    for value in values:
        moments.add(value)
    return moments


def assert_same(one: Moments, other: Moments, scale: float) -> None:
    assert one.count == other.count
    assert one.mean == pytest.approx(other.mean, rel=1e-9, abs=1e-9 * scale)
    assert one.squares == pytest.approx(other.squares, rel=1e-9, abs=1e-9 * scale**2)
    assert one.cubes == pytest.approx(other.cubes, rel=1e-9, abs=1e-9 * scale**3)


def scale_of(*lists: list[float]) -> float:
    return 1 + max((abs(value) for values in lists for value in values), default=0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_they_agree_with_numpy(values: list[float]) -> None:
    moments, scale = moments_of(values), scale_of(values)
    assert moments.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    assert moments.variance == pytest.approx(np.var(values, ddof=1), abs=1e-9 * scale**2)
    third = np.sum((np.array(values) - np.mean(values)) ** 3)
    assert moments.cubes == pytest.approx(third, rel=1e-6, abs=1e-9 * scale**3)


@given(values, values)
def test_merged_moments_are_those_of_one_stream(first: list[float], second: list[float]) -> None:
    merged = moments_of(first)
    merged.merge(moments_of(second))
    assert_same(merged, moments_of(first + second), scale_of(first, second))


@given(values, values)
def test_it_does_not_matter_which_is_merged_into_which(
    first: list[float], second: list[float]
) -> None:
    one, other = moments_of(first), moments_of(second)
    one.merge(moments_of(second))
    other.merge(moments_of(first))
    assert_same(one, other, scale_of(first, second))


@given(values)
def test_they_come_back_from_json_as_they_were(values: list[float]) -> None:
    moments = moments_of(values)
    assert msgspec.json.decode(msgspec.json.encode(moments), type=Moments) == moments


def test_a_small_spread_around_a_large_mean_is_not_lost() -> None:
    moments = moments_of([1e9 + value for value in (1.0, 2.0, 3.0)] * 1000)
    assert moments.variance == pytest.approx(2000 / 2999, rel=1e-6)


def test_one_value_tells_nothing_of_the_variance() -> None:
    assert moments_of([]).estimate.variance == math.inf
    assert moments_of([3.0]).estimate == (3.0, math.inf, 0.0)
