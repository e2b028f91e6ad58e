import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.experiments.metrics import METRICS, of_shares
from headrace.routing.experiments.plan import MetricName
from headrace.routing.experiments.samples import Values
from headrace.routing.stats.estimate import Estimate
from routing.experiments.simulated import Draw, naive_p_is_small, on_mixture, p_values, sides
from routing.stats.simulated import share_that_ever

ALPHA = 0.05
STREAMS = 200


def succeeding(share: float) -> Draw:
    return lambda rng, shape: (rng.random(shape) < share) * 1.0


def taking(seconds: float, sigma: float) -> Draw:
    return lambda rng, shape: seconds * rng.lognormal(0, sigma, shape)


def scored(mean: float) -> Draw:
    """Stars from 0 to 4, as shares of 4."""
    return lambda rng, shape: rng.binomial(4, mean, shape) / 4


@pytest.fixture(autouse=True)
def _arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    on_mixture(monkeypatch)


@pytest.mark.parametrize(("every", "floor"), [(2, 50), (10, 50), (10, 500)])
@pytest.mark.parametrize("share", [0.99, 0.5])
def test_looks_at_equal_successes_err_no_more_often_than_alpha(
    share: float, every: int, floor: int
) -> None:
    variant, control = sides(
        succeeding(share), succeeding(share), every=every, floor=floor, streams=STREAMS
    )
    assert share_that_ever(p_values("success", variant, control) <= ALPHA) <= ALPHA


@pytest.mark.parametrize(("every", "floor"), [(2, 200), (10, 500)])
@pytest.mark.parametrize("sigma", [1.0])
def test_looks_at_equal_latencies_err_no_more_often_than_alpha(
    sigma: float, every: int, floor: int
) -> None:
    variant, control = sides(
        taking(0.3, sigma), taking(0.3, sigma), every=every, floor=floor, streams=STREAMS
    )
    assert share_that_ever(p_values("latency", variant, control) <= ALPHA) <= ALPHA


@pytest.mark.parametrize(("every", "floor"), [(2, 50), (10, 50)])
@pytest.mark.parametrize("mean", [0.99, 0.5])
def test_looks_at_equal_scores_err_no_more_often_than_alpha(
    mean: float, every: int, floor: int
) -> None:
    variant, control = sides(scored(mean), scored(mean), every=every, floor=floor, streams=STREAMS)
    assert share_that_ever(p_values("feedback", variant, control) <= ALPHA) <= ALPHA


def test_a_test_for_one_look_errs_many_times_as_often() -> None:
    variant, control = sides(succeeding(0.9), succeeding(0.9), every=2, floor=200, streams=STREAMS)
    assert share_that_ever(naive_p_is_small(variant, control)) > 5 * ALPHA


def test_without_what_was_not_seen_rare_failures_would_be_differences() -> None:
    same = succeeding(0.99)
    (mean, _), (other, count) = sides(same, same, every=10, floor=50, streams=STREAMS)
    never = np.full_like(count, 10**9)
    plain = p_values("success", (mean, never), (other, never))
    assert share_that_ever(plain <= ALPHA) > 3 * ALPHA


@pytest.mark.parametrize(
    ("metric", "variant", "control"),
    [
        ("success", succeeding(0.98), succeeding(0.95)),
        ("latency", taking(0.8, 0.5), taking(1.0, 0.5)),
        ("feedback", scored(0.75), scored(0.7)),
    ],
)
def test_what_the_page_promises_is_found_nine_times_of_ten(
    metric: MetricName, variant: Draw, control: Draw
) -> None:
    """In 2,000 requests a side: docs/rollouts.md."""
    one, other = sides(variant, control, every=2, floor=500, streams=STREAMS)
    until = 2 * (2_000 - 500)
    assert share_that_ever(p_values(metric, one, other)[:, :until] <= ALPHA) >= 0.9


def test_alpha_is_shared_among_variants_that_have_one_control() -> None:
    same = succeeding(0.9)
    first, control = sides(same, same, every=2, floor=200, streams=STREAMS)
    rng = np.random.default_rng(22)
    other = Estimate(*(part[rng.permutation(STREAMS)] for part in first[0]))
    lowest = np.minimum(
        p_values("success", first, control), p_values("success", (other, first[1]), control)
    )
    assert share_that_ever(lowest <= ALPHA / 2) <= ALPHA


@given(st.floats(0, 1), st.integers(1, 10**6))
def test_what_was_not_seen_widens_a_share_and_moves_it_nowhere(mean: float, count: int) -> None:
    plain = Estimate(mean, 1e-4, 1e-7)
    wider = of_shares(plain, count)
    assert (wider.value, wider.third) == (plain.value, plain.third)
    assert 0.5 / count**2 <= wider.variance - plain.variance + 1e-15 <= 1.01 / count**2 + 1e-15


def test_a_metric_without_requests_is_unknown() -> None:
    assert METRICS["success"].estimate(Values()) == Estimate(0.0, math.inf)
