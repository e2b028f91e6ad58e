import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from headrace.routing.stats import mixture
from headrace.routing.stats.estimate import Estimate
from headrace.routing.stats.moments import Moments
from routing.stats.simulated import (
    LOOKS,
    Array,
    after_every_request,
    on_arrays,
    running,
    share_that_ever,
)

ALPHA = 0.05
STREAMS = 400
FLOORS = {2: 200, 5: 500}  # one group in so many: its samples before the first look
DRAWS = {
    "normal": lambda rng, shape: rng.normal(1, 1, shape),
    "lognormal": lambda rng, shape: rng.lognormal(0, 1, shape),
    "errors of 5 %": lambda rng, shape: (rng.random(shape) < 0.05) * 1.0,
}

Draw = Callable[[np.random.Generator, tuple[int, int]], Array]

numbers = st.floats(-5, 5)
positive = st.floats(0.01, 5)
estimates = st.builds(Estimate, numbers, positive, numbers)


@pytest.fixture(params=DRAWS)
def draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Draw:
    on_arrays(monkeypatch, mixture, "log", "sqrt")
    return DRAWS[request.param]


def groups(draw: Draw, every: int) -> tuple[Estimate, Estimate]:
    """After each of 10,000 requests, from a floor on."""
    rng = np.random.default_rng(24)
    one = running(draw(rng, (STREAMS, LOOKS // every)))
    other = running(draw(rng, (STREAMS, LOOKS - LOOKS // every)))
    after = after_every_request(one, other, every)
    looks = slice(FLOORS[every] * every, None)
    return tuple(Estimate(*(part[:, looks] for part in each)) for each in after)


def excludes(interval: tuple[Array, Array], value: float) -> Array:
    return (interval[0] > value) | (interval[1] < value)


@pytest.mark.parametrize("every", FLOORS)
def test_a_look_after_every_sample_errs_no_more_often_than_alpha(draw: Draw, every: int) -> None:
    one, other = groups(draw, every)
    difference = one.minus(other)
    deviation = math.sqrt(float(one.variance[0, -1]) * LOOKS / every)
    effect = 0.2 * deviation
    naive = abs(difference.value) > 1.96 * np.sqrt(difference.variance)
    assert share_that_ever(naive) > 4 * ALPHA  # so that the simulation could see it
    assert share_that_ever(excludes(mixture.interval(difference, effect, ALPHA), 0.0)) <= ALPHA
    assert share_that_ever(mixture.lower_bound(difference, effect, ALPHA) > 0) <= ALPHA
    assert share_that_ever(mixture.upper_bound(difference, effect, ALPHA) < 0) <= ALPHA


def test_a_mean_stays_in_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    on_arrays(monkeypatch, mixture, "log", "sqrt")
    values = np.random.default_rng(1).normal(3, 2, (STREAMS, LOOKS))
    mean = Estimate(*(part[:, 100:] for part in running(values)))
    effect = mixture.effect_for(1000, 2.0)
    assert share_that_ever(excludes(mixture.interval(mean, effect, ALPHA), 3.0)) <= ALPHA
    naive = abs(mean.value - 3) > 1.96 * np.sqrt(mean.variance)
    assert share_that_ever(naive) > 4 * ALPHA


def test_half_a_deviation_is_found_in_500_pairs_nine_times_of_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_arrays(monkeypatch, mixture, "log", "sqrt")
    rng = np.random.default_rng(2)
    one, other = (running(rng.normal(mean, 1, (STREAMS, 250))) for mean in (0.5, 0.0))
    lowest = mixture.lower_bound(one.minus(other), 0.5, ALPHA)[:, 30:]
    assert share_that_ever(lowest > 0) >= 0.9


@given(st.integers(2, 10_000), positive, positive, numbers)
def test_without_skew_the_likelihood_ratio_is_that_of_the_paper(
    n: int, v: float, effect: float, d: float
) -> None:
    t = effect**2
    assume(n**2 * t * d**2 / (2 * v * (v + n * t)) < 500)
    expected = math.sqrt(v / (v + n * t)) * math.exp(n**2 * t * d**2 / (2 * v * (v + n * t)))
    p = mixture.p_value(Estimate(d, v / n), effect)
    assert p == pytest.approx(min(1, 1 / expected), rel=1e-3)


@given(st.integers(2, 10_000), positive, positive)
def test_without_skew_the_interval_is_that_of_the_paper(
    n: int, deviation: float, rho: float
) -> None:
    both = n * rho**2 + 1
    inner = 2 * both / (n * rho) ** 2 * math.log(math.sqrt(both) / ALPHA)
    estimate = Estimate(0.0, deviation**2 / n)
    _, high = mixture.interval(estimate, rho * deviation, ALPHA)
    assert high == pytest.approx(deviation * math.sqrt(inner), rel=1e-3)


@settings(deadline=None)
@given(st.floats(0.1, 2), st.floats(0.1, 2))
def test_evidence_for_nothing_is_1_on_average(variance: float, effect: float) -> None:
    def weighted(z: float) -> float:
        estimate = Estimate(z * math.sqrt(variance), variance)
        return math.exp(mixture._log_likelihood_ratio(estimate, effect) - z**2 / 2) / math.sqrt(
            2 * math.pi
        )

    assert quad(weighted, -70, 70, limit=500, points=[0])[0] == pytest.approx(1, rel=1e-4)


@given(estimates, positive, st.floats(0.001, 0.5))
def test_a_p_value_is_under_alpha_where_the_interval_leaves_out_0(
    estimate: Estimate, effect: float, alpha: float
) -> None:
    low, high = mixture.interval(estimate, effect, alpha)
    assume(min(abs(low), abs(high)) > 1e-6)
    assert (mixture.p_value(estimate, effect) < alpha) == (not low <= 0 <= high)


@given(st.lists(estimates, min_size=1))
def test_a_p_value_never_rises(looks: list[Estimate]) -> None:
    p = 1.0
    for estimate in looks:
        before, p = p, mixture.p_value(estimate, 0.5, so_far=p)
        assert 0 <= p <= before


@given(estimates, positive)
def test_one_sided_bounds_lie_within_the_interval(estimate: Estimate, effect: float) -> None:
    low, high = mixture.interval(estimate, effect, ALPHA)
    assert low <= mixture.lower_bound(estimate, effect, ALPHA) <= estimate.value
    assert estimate.value <= mixture.upper_bound(estimate, effect, ALPHA) <= high


def test_errors_that_lean_to_one_side_widen_it_only_there() -> None:
    plain = mixture.interval(Estimate(0.0, 1.0), 1.0, ALPHA)
    leaning = mixture.interval(Estimate(0.0, 1.0, third=0.5), 1.0, ALPHA)
    assert leaning[0] == plain[0]
    assert leaning[1] > plain[1]


def test_an_interval_is_narrowest_at_the_samples_it_was_meant_for() -> None:
    effects = [mixture.effect_for(n, 1.0) for n in (100, 300, 1000, 3000, 10_000)]
    highs = [mixture.interval(Estimate(0.0, 1 / 1000), effect, ALPHA)[1] for effect in effects]
    assert min(highs) == highs[2]


def test_nothing_is_said_of_an_unknown_variance() -> None:
    unknown = Moments(1, 5.0).estimate
    assert mixture.interval(unknown, 1.0, ALPHA) == (-math.inf, math.inf)
    assert mixture.lower_bound(unknown, 1.0, ALPHA) == -math.inf
    assert mixture.p_value(unknown, 1.0) == 1


def test_constants_that_differ_differ() -> None:
    assert mixture.p_value(Estimate(0.5, 0.0), 1.0) < 1e-300
    assert mixture.p_value(Estimate(0.0, 0.0), 1.0) == 1


def test_what_never_varies_has_no_effect_to_look_for() -> None:
    with pytest.raises(AssertionError, match="name one"):
        mixture.effect_for(100, 0.0)
