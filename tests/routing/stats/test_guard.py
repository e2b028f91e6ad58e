import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.stats import mixture
from headrace.routing.stats.comparison import BETTER_TAKES, Verdict
from headrace.routing.stats.guard import ErrorGuard, HardLimit, LatencyGuard
from routing.stats.simulated import (
    LOOKS,
    after_every_request,
    on_arrays,
    running,
    share_that_ever,
)

ALPHA = 0.05
WORSE, FINE, UNKNOWN = Verdict.WORSE, Verdict.FINE, Verdict.UNKNOWN


def errors_seen(candidate: float, stable: float, count: int, *, floor: int = 50) -> ErrorGuard:
    """A tenth of the requests went to the candidate."""
    rng, guard = np.random.default_rng(12), ErrorGuard.begin(0.01, min_samples=floor)
    for i in range(count):
        to_candidate = i % 10 == 0
        failed = rng.random() < (candidate if to_candidate else stable)
        guard.add(f"{i}", candidate=to_candidate, failed=bool(failed))
    return guard


def latencies_seen(ratio: float, count: int) -> LatencyGuard:
    rng, guard = np.random.default_rng(13), LatencyGuard.begin(1.2)
    for i in range(count):
        seconds = rng.lognormal(0, 0.5) * (ratio if i % 2 else 1)
        guard.add(f"{i}", seconds, candidate=i % 2 == 1)
    return guard


def test_more_errors_than_the_margin_are_worse() -> None:
    reading = errors_seen(0.08, 0.01, 8000).read()
    assert reading.verdict is WORSE
    assert 0 < reading.lowest_excess < reading.excess < reading.highest_excess
    assert reading.excess == pytest.approx(reading.candidate - reading.stable - 0.01)
    assert (reading.num_candidate, reading.num_stable) == (800, 7200)


def test_as_many_errors_as_before_are_fine() -> None:
    assert errors_seen(0.001, 0.001, 12_000).read().verdict is FINE


def test_errors_at_the_margin_stay_unknown() -> None:
    assert errors_seen(0.02, 0.01, 8000).read().verdict is UNKNOWN


def test_a_difference_of_some_users_only_is_not_one_of_versions() -> None:
    rng = np.random.default_rng(14)
    guard = ErrorGuard.begin(0.01)
    for i in range(8000):
        user = rng.integers(25)
        to_candidate = i % 2 == 0
        broken = to_candidate and user == 0  # one of 25 users of the candidate always fails
        guard.add(f"{to_candidate} {user}", candidate=to_candidate, failed=bool(broken))
    assert guard.bets.log_worse > 10
    assert guard.read().verdict is UNKNOWN


def test_no_error_yet_is_not_fine_yet() -> None:
    guard = errors_seen(0.0, 0.0, 600, floor=5)  # 60 of the candidate
    assert guard.read().highest_excess < 0  # as variances of nothing but zeros have it
    assert guard.read().verdict is UNKNOWN


def test_a_latency_over_the_ratio_is_worse_and_one_well_under_it_fine() -> None:
    assert latencies_seen(1.5, 3000).read().verdict is WORSE
    assert latencies_seen(1.0, 3000).read().verdict is FINE
    assert latencies_seen(1.2, 3000).read().verdict is UNKNOWN


def test_nothing_is_said_before_there_are_samples_and_users() -> None:
    assert ErrorGuard.begin(0.01).read().verdict is UNKNOWN
    assert LatencyGuard.begin(1.2).read().verdict is UNKNOWN
    for floor, verdict in ((20, WORSE), (1000, UNKNOWN)):
        guard = LatencyGuard.begin(1.2, min_samples=floor)
        for i in range(1000):
            guard.add(f"{i}", 1 + 9 * (i % 2), candidate=i % 2 == 1)
        assert guard.read().verdict is verdict
    for i in range(10_000):
        guard.add(f"{i}", 1 + 9 * (i % 2), candidate=i % 2 == 1)
    assert guard.read().verdict is UNKNOWN  # the better one takes ten times as many


def test_few_users_are_not_enough() -> None:
    guard = LatencyGuard.begin(1.2)
    for i in range(5000):
        guard.add(f"{i % 24}", 1 + 9 * (i % 2) + i % 7 / 10, candidate=i % 2 == 1)
    assert guard.read().verdict is UNKNOWN


@pytest.mark.parametrize("every", [2, 10])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_a_latency_at_the_ratio_errs_no_more_often_than_alpha_at_every_look(
    monkeypatch: pytest.MonkeyPatch, every: int, sigma: float
) -> None:
    on_arrays(monkeypatch, mixture, "log", "sqrt")
    rng = np.random.default_rng(15)
    candidate = running(1.2 * rng.lognormal(0, sigma, (300, LOOKS // every)))
    stable = running(rng.lognormal(0, sigma, (300, LOOKS - LOOKS // every)))
    candidate, stable = after_every_request(candidate, stable, every)
    excess = candidate.minus(stable, times=1.2)
    num_candidate = np.arange(every, LOOKS + 1) // every
    worse_from, fine_from = num_candidate >= 500 / (every - 1), num_candidate >= 500
    lowest = mixture.lower_bound(excess, 0.2 * stable.value, ALPHA)
    highest = mixture.upper_bound(excess, 0.2 * stable.value, ALPHA)
    naive = excess.value > 1.645 * np.sqrt(excess.variance)
    assert share_that_ever(naive & worse_from) > 2 * ALPHA
    assert share_that_ever((lowest > 0) & worse_from) <= ALPHA
    assert share_that_ever((highest < 0) & fine_from) <= ALPHA


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=20))
def test_guards_come_back_from_json_as_they_were(requests: list) -> None:
    errors, latency = ErrorGuard.begin(0.02, alpha=0.01), LatencyGuard.begin(1.5)
    limit = HardLimit()
    for user, candidate, failed in requests:
        errors.add(str(user), candidate=candidate, failed=failed)
        latency.add(str(user), 0.1 + user, candidate=candidate)
        limit.add(failed=failed)
    for guard in (errors, latency, limit):
        again = msgspec.json.decode(msgspec.json.encode(guard), type=type(guard))
        assert again == guard


def test_more_than_half_of_the_last_20_failing_breaks_the_hard_limit() -> None:
    limit = HardLimit()
    for i in range(19):
        limit.add(failed=True)
        assert not limit.is_broken, i
    limit.add(failed=True)
    assert limit.is_broken
    for _ in range(10):
        limit.add(failed=False)
    assert not limit.is_broken  # ten of twenty are not more than half
    limit.add(failed=True)
    assert limit.last == [True] * 9 + [False] * 10 + [True]


def test_a_version_finds_another_better_only_from_500_samples_on() -> None:
    assert BETTER_TAKES * LatencyGuard.begin(1.2).compared.min_samples == 500
