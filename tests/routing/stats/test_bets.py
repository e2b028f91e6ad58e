import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.routing.stats import bets as of_bets
from headrace.routing.stats.bets import FRACTIONS, Bets
from routing.stats.simulated import LOOKS, Array, on_arrays, share_that_ever

ALPHA = 0.05
STREAMS = 300
arms = st.lists(st.booleans(), max_size=8)


def bets_on(margin: float, arms: Sequence[bool], failures: Sequence[bool]) -> Bets:
    bets = Bets(margin)
    for candidate, failed in zip(arms, failures, strict=True):
        bets.add(candidate=candidate, failed=failed)
    return bets


def expected_capitals(margin: float, arms: Sequence[bool], rates: dict) -> tuple[float, float]:
    """Over every way in which the requests may end."""
    worse = fine = 0.0
    for failures in itertools.product([False, True], repeat=len(arms)):
        ends = zip(arms, failures, strict=True)
        probability = math.prod(rates[arm] if failed else 1 - rates[arm] for arm, failed in ends)
        bets = bets_on(margin, arms, failures)
        worse += probability * math.exp(bets.log_worse)
        fine += probability * math.exp(bets.log_fine)
    return worse, fine


@settings(deadline=None)
@given(arms, st.floats(0, 0.5), st.floats(0, 0.5))
def test_at_the_margin_a_gambler_wins_nothing_on_average(
    arms: list[bool], stable: float, margin: float
) -> None:
    rates = {False: stable, True: stable + margin}
    assert expected_capitals(margin, arms, rates) == pytest.approx((1, 1))


@settings(deadline=None)
@given(arms, st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.9))
def test_a_gambler_who_is_wrong_loses_on_average(
    arms: list[bool], stable: float, candidate: float, margin: float
) -> None:
    worse, fine = expected_capitals(margin, arms, {False: stable, True: candidate})
    assert (worse if candidate - stable <= margin else fine) <= 1 + 1e-9


@given(arms, st.data(), st.floats(0, 0.9))
def test_bets_come_back_from_json_as_they_were(
    arms: list[bool], data: st.DataObject, margin: float
) -> None:
    failures = data.draw(st.lists(st.booleans(), min_size=len(arms), max_size=len(arms)))
    bets = bets_on(margin, arms, failures)
    assert msgspec.json.decode(msgspec.json.encode(bets), type=Bets) == bets


def test_nothing_is_settled_before_both_versions_have_answered() -> None:
    bets = bets_on(0.01, [False] * 5, [True] * 5)
    assert bets.log_worse == bets.log_fine == 0
    bets.add(candidate=True, failed=False)
    assert bets.log_fine > 0 > bets.log_worse
    assert bets.trials == [0, 0]


def capitals(
    monkeypatch: pytest.MonkeyPatch, margin: float, every: int, candidate: Array, stable: Array
) -> tuple[Array, Array]:
    """Logs of both after each of 10,000 requests, one in `every` of which the candidate answers.

    Rates are one number, or one for each block; only a block's end changes anything.
    """
    on_arrays(monkeypatch, of_bets, "log1p")
    rng, blocks = np.random.default_rng(6), LOOKS // every
    failed = rng.random((STREAMS, blocks)) < candidate
    failed_stable = rng.binomial(every - 1, np.broadcast_to(stable, failed.shape)) / (every - 1)
    bets, worse, fine = Bets(margin), [], []
    for excess in (failed - failed_stable - margin).T:
        bets._settle(excess)
        worse.append(np.logaddexp.reduce(bets.worse) - math.log(len(FRACTIONS)))
        fine.append(np.logaddexp.reduce(bets.fine) - math.log(len(FRACTIONS)))
    return np.stack(worse, 1), np.stack(fine, 1)


def decides(log_capital: Array) -> Array:
    return log_capital >= -math.log(ALPHA)


@pytest.mark.parametrize("every", [2, 10])
@pytest.mark.parametrize("stable", [0.001, 0.01, 0.05])
def test_at_the_margin_a_look_after_every_request_errs_no_more_often_than_alpha(
    monkeypatch: pytest.MonkeyPatch, every: int, stable: float
) -> None:
    worse, fine = capitals(monkeypatch, 0.01, every, stable + 0.01, stable)
    assert share_that_ever(decides(worse)) <= ALPHA
    assert share_that_ever(decides(fine)) <= ALPHA


def test_an_outage_of_both_versions_is_not_the_candidates_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tide = 0.2 + 0.2 * np.sin(np.arange(LOOKS // 10) / 50)
    worse, _ = capitals(monkeypatch, 0.01, 10, tide, tide)
    assert share_that_ever(decides(worse)) <= ALPHA


def test_one_error_in_twenty_instead_of_a_hundred_is_found_in_600_requests_of_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worse, _ = capitals(monkeypatch, 0.01, 10, 0.05, 0.01)
    assert share_that_ever(decides(worse[:, :600])) >= 0.85


def test_no_difference_is_found_fine_in_1000_requests_of_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, fine = capitals(monkeypatch, 0.01, 10, 0.001, 0.001)
    assert share_that_ever(decides(fine)) >= 0.85
