from itertools import pairwise
from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotReadyError, QueueFullError
from headrace.routing.attempts.retry import NextTry, RetryPlan
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.outcome import (
    DROPPED,
    LEFT,
    SUCCESS,
    Verdict,
    judge_error,
    judge_status,
)
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(jitter=0.0)
A, B, C = ENDPOINTS = [Endpoint(name) for name in "abc"]
FULL = judge_error(QueueFullError("", retry_after=0.1))


def plan(policy: RoutingPolicy = POLICY, deadline: float | None = None) -> RetryPlan:
    return RetryPlan(policy, deadline, Random(0))


def tried(*endpoints: Endpoint, deadline: float | None = None) -> RetryPlan:
    one = plan(deadline=deadline)
    for endpoint in endpoints:
        one.begin(endpoint)
    return one


def delays(one: RetryPlan) -> list[float]:
    found = []
    while True:
        one.begin(A)
        if (following := one.after(DROPPED, [A], 0.0)) is None:
            return found
        found.append(following.delay)


def test_five_tries_wait_50_ms_growing_by_half() -> None:
    assert delays(plan()) == pytest.approx([0.05, 0.075, 0.1125, 0.16875])


def test_delays_grow_up_to_a_bound() -> None:
    waits = delays(plan(RoutingPolicy(jitter=0.0, max_tries=2000)))
    assert len(waits) == 1999
    assert set(waits[8:]) == {1.0}


@given(st.integers())
def test_delays_are_scattered_by_a_fifth(seed: int) -> None:
    waits = delays(RetryPlan(RoutingPolicy(), None, Random(seed)))
    for wait, middle in zip(waits, [0.05, 0.075, 0.1125, 0.16875], strict=True):
        assert 0.799 * middle <= wait <= 1.201 * middle


@pytest.mark.parametrize("verdict", [LEFT, SUCCESS, judge_status(404)])
def test_some_ends_are_final(verdict: Verdict) -> None:
    assert tried(A).after(verdict, [A, B], 0.0) is None


def test_another_endpoint_comes_first() -> None:
    assert tried(A).after(DROPPED, [A, B, C], 0.0) == NextTry(0.05, frozenset((A,)))
    assert tried(A, B).after(DROPPED, [A, B, C], 0.0) == NextTry(0.05, frozenset((A, B)))


def test_the_one_that_failed_last_is_not_tried_again_while_another_takes_requests() -> None:
    assert tried(A, B).after(DROPPED, [A, B], 0.0) == NextTry(0.05, frozenset((B,)))
    assert tried(B, B, A).after(DROPPED, [A, B], 0.0) == NextTry(0.05, frozenset((A,)))


def test_of_those_tried_the_one_with_the_fewest_tries_is_next() -> None:
    excluding = frozenset((A, C))
    assert tried(A, A, B, C).after(DROPPED, [A, B, C], 0.0) == NextTry(0.05, excluding)


def test_of_those_tried_as_often_the_one_that_is_ready_first_is_next() -> None:
    one = plan()
    for endpoint, seconds in ((A, 1.0), (B, 0.5), (C, 0.0)):
        one.begin(endpoint)
        following = one.after(judge_status(503, retry_after=seconds), [A, B, C], 0.0)
    assert following == NextTry(0.5, frozenset((A, C)))


def test_the_only_one_that_takes_requests_is_tried_again() -> None:
    assert tried(A).after(DROPPED, [A], 0.0) == NextTry(0.05, frozenset())
    assert tried(A, B).after(DROPPED, [B], 0.0) == NextTry(0.05, frozenset((A,)))


def test_where_nobody_takes_requests_there_is_no_next_try() -> None:
    assert tried(A).after(DROPPED, [], 0.0) is None


def test_a_short_retry_after_is_waited_for_where_there_is_nobody_else() -> None:
    verdict = judge_status(429, retry_after=1.0)
    assert tried(A).after(verdict, [A], 5.0) == NextTry(1.0, frozenset())
    assert tried(A).after(verdict, [A, B], 5.0) == NextTry(0.05, frozenset((A,)))


def test_a_retry_after_shorter_than_the_delay_changes_nothing() -> None:
    verdict = judge_error(NotReadyError("", retry_after=0.01))
    assert tried(A).after(verdict, [A], 0.0) == NextTry(0.05, frozenset())


@pytest.mark.parametrize("seconds", [2.1, 3600.0, float("inf"), nan])
def test_a_long_retry_after_is_passed_on(seconds: float) -> None:
    assert tried(A).after(judge_status(503, retry_after=seconds), [A], 0.0) is None


def test_an_earlier_retry_after_still_binds() -> None:
    one = tried(A)
    assert one.after(judge_status(503, retry_after=1.0), [A, B], 0.0) is not None
    one.begin(B)
    assert one.after(judge_status(503, retry_after=60.0), [A, B], 0.25) == NextTry(
        0.75, frozenset((B,))
    )


def test_a_full_queue_is_not_waited_for() -> None:
    one = tried(A)
    assert one.after(FULL, [A, B], 0.0) == NextTry(0.05, frozenset((A,)))
    one.begin(B)
    assert one.after(FULL, [A, B], 0.0) is None


def test_a_full_queue_elsewhere_leaves_the_one_that_failed() -> None:
    one = tried(A)
    assert one.after(FULL, [A, B], 0.0) is not None
    one.begin(B)
    following = one.after(DROPPED, [A, B], 0.0)
    assert following is not None
    assert following.excluding == frozenset((A,))


def test_no_try_begins_at_or_past_the_deadline() -> None:
    assert tried(A, deadline=10.0).after(DROPPED, [A, B], 9.9) is not None
    assert tried(A, deadline=10.0).after(DROPPED, [A, B], 9.96) is None
    assert tried(A, deadline=10.0).after(judge_status(429, retry_after=1.0), [A], 9.1) is None


VERDICTS = st.sampled_from([DROPPED, FULL, judge_status(503, retry_after=1.0), judge_status(500)])


@given(st.data(), st.floats(0.0, 10.0))
def test_whatever_happens_the_rules_hold(data: st.DataObject, deadline: float) -> None:
    one, now, last, not_before = plan(RoutingPolicy(), deadline), 0.0, A, dict.fromkeys("abc", 0.0)
    one.begin(last)
    for number in range(2, 100):
        verdict = data.draw(VERDICTS)
        taking = data.draw(st.lists(st.sampled_from(ENDPOINTS), unique=True))
        if verdict.retry_after is not None:
            not_before[last.name] = now + verdict.retry_after
        if verdict == FULL:
            not_before[last.name] = inf
        following = one.after(verdict, taking, now)
        if following is None:
            return
        assert number <= 5
        now += following.delay
        assert now < deadline
        last = data.draw(st.sampled_from([e for e in taking if e not in following.excluding]))
        assert now >= not_before[last.name] - 1e-9
        one.begin(last)
    raise AssertionError("it never ends")


@given(st.lists(st.sampled_from(ENDPOINTS), unique=True, min_size=1), st.data())
def test_of_failing_endpoints_each_has_its_turn(
    taking: list[Endpoint], data: st.DataObject
) -> None:
    one, order = plan(), [A]
    one.begin(A)
    while (following := one.after(DROPPED, taking, 0.0)) is not None:
        order.append(
            data.draw(st.sampled_from([e for e in taking if e not in following.excluding]))
        )
        one.begin(order[-1])
    assert len(order) == 5
    num_endpoints = len({*taking, A})
    assert len(set(order[:num_endpoints])) == num_endpoints
    if len(taking) > 1:
        assert all(one is not two for one, two in pairwise(order))
