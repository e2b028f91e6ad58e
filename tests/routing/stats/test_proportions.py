import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from headrace.routing.stats import beta_binomial
from headrace.routing.stats.proportions import (
    Rate,
    difference_interval,
    interval,
    ratio_interval,
)
from routing.stats.simulated import LOOKS, Array, on_arrays, share_that_ever

ALPHA = 0.05
STREAMS = 400
rates = st.integers(0, 2000).flatmap(lambda n: st.builds(Rate, st.integers(0, n), st.just(n)))


def failures(p: float) -> Array:
    return np.cumsum(np.random.default_rng(7).random((STREAMS, LOOKS)) < p, 1)


@pytest.mark.parametrize("p", [0.001, 0.01, 0.05, 0.5])
def test_a_rate_stays_in_its_sequence_at_every_look(
    monkeypatch: pytest.MonkeyPatch, p: float
) -> None:
    monkeypatch.setattr(beta_binomial, "lgamma", special.gammaln)
    n = np.arange(1, LOOKS + 1)
    left_out = beta_binomial.log_ratio(failures(p), n, p) >= -math.log(ALPHA)
    assert share_that_ever(left_out) <= ALPHA


@pytest.mark.parametrize("p", [0.01, 0.05])
def test_the_textbooks_interval_looked_at_after_every_sample_misses_often(
    monkeypatch: pytest.MonkeyPatch, p: float
) -> None:
    on_arrays(monkeypatch, beta_binomial, "log")
    n = np.arange(1, LOOKS + 1)
    share = failures(p) / n
    wald = abs(share - p) > 1.96 * np.sqrt(share * (1 - share) / n)
    assert share_that_ever(wald[:, 1000:]) > 3 * ALPHA


@given(rates, st.floats(0.001, 0.5), st.floats(0.0001, 0.9999))
def test_an_interval_is_the_rates_that_are_not_rejected(rate: Rate, alpha: float, p: float) -> None:
    low, high = interval(rate, alpha)
    rejected = beta_binomial.log_ratio(*rate, p) >= -math.log(alpha)
    if min(abs(p - low), abs(p - high)) > 1e-9:
        assert rejected == (not low <= p <= high)


@given(rates, st.floats(0.001, 0.5))
def test_an_interval_holds_what_was_seen(rate: Rate, alpha: float) -> None:
    low, high = interval(rate, alpha)
    assert 0 <= low <= high <= 1
    if rate.trials:
        assert low <= rate.failures / rate.trials <= high


@given(rates, st.floats(0.001, 0.5))
def test_successes_mirror_failures(rate: Rate, alpha: float) -> None:
    low, high = interval(rate, alpha)
    mirrored = interval(Rate(rate.trials - rate.failures, rate.trials), alpha)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_small_counts_say_something_and_no_counts_nothing() -> None:
    assert interval(Rate(0, 0), ALPHA) == (0, 1)
    low, high = interval(Rate(0, 100), ALPHA)
    assert low == 0
    assert 0.03 < high < 0.08


@given(rates, rates)
def test_differences_and_ratios_combine_both_ends(one: Rate, other: Rate) -> None:
    low, high = interval(one, ALPHA / 2)
    other_low, other_high = interval(other, ALPHA / 2)
    assert difference_interval(one, other, ALPHA) == (low - other_high, high - other_low)
    ratio = ratio_interval(one, other, ALPHA)
    assert ratio == (low / other_high, high / other_low if other_low else math.inf)


def test_a_difference_and_a_ratio_stay_in_their_sequences() -> None:
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(40):
        one, other = (np.cumsum(rng.random(2000) < p) for p in (0.05, 0.02))
        missed += any(
            not is_held(Rate(int(one[n - 1]), n), Rate(int(other[n - 1]), n))
            for n in range(50, 2000, 150)
        )
    assert missed <= 40 * ALPHA


def is_held(one: Rate, other: Rate) -> bool:
    low, high = difference_interval(one, other, ALPHA)
    least, most = ratio_interval(one, other, ALPHA)
    return low <= 0.03 <= high and least <= 2.5 <= most
