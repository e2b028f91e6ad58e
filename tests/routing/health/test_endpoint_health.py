from math import inf
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.health.endpoint_health import NUM_STEPS, EndpointHealth, retry_after
from headrace.routing.outcome import Outcome
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(jitter=0.0)


def health(policy: RoutingPolicy = POLICY, weight: float = 1.0) -> EndpointHealth:
    return EndpointHealth(Endpoint("a", weight), policy, Random(0), 0.0)


def attempt(one: EndpointHealth, outcome: Outcome | None, now: float, times: int = 1) -> None:
    for _ in range(times):
        one.breaker.end(one.breaker.begin(now), outcome, now)


def remove(one: EndpointHealth, now: float) -> None:
    for _ in range(3):
        one.probing.record(passed=False, now=now)


def bring_back(one: EndpointHealth, now: float) -> None:
    for _ in range(2):
        one.probing.record(passed=True, now=now)


def test_a_new_endpoint_takes_requests_with_its_whole_weight_and_wants_a_probe() -> None:
    one = health(weight=3.0)
    assert one.takes_requests(0.0)
    assert one.effective_weight(0.0) == 3.0
    assert one.next_probe_at == 0.0
    assert one.changes_at(0.0) == inf


def test_failed_probes_take_it_out_and_good_ones_bring_it_back_slowly() -> None:
    one = health(weight=2.0)
    remove(one, 0.0)
    assert not one.takes_requests(0.0)
    assert one.effective_weight(0.0) == 0.0
    bring_back(one, 10.0)
    weights = [one.effective_weight(now) for now in (10.0, 25.0, 40.0, 99.0)]
    assert weights == pytest.approx([0.2, 1.1, 2.0, 2.0])


def test_one_that_is_never_probed_is_in_but_for_its_breaker() -> None:
    one = EndpointHealth(Endpoint("a"), POLICY, Random(0), first_probe_at=inf)
    assert one.next_probe_at == inf
    assert one.takes_requests(0.0)
    assert one.ready_at(0.0) == 0.0
    attempt(one, "failure", 0.0, times=10)
    assert not one.takes_requests(0.0)


def test_one_without_weight_is_wanted_by_nobody() -> None:
    one = health(weight=0.0)
    assert not one.takes_requests(0.0)
    assert one.ready_at(0.0) == inf


def test_a_restart_forgets_what_real_traffic_said_and_not_what_probes_say() -> None:
    one = health()
    attempt(one, "failure", 0.0, times=10)
    one.renew()
    assert one.effective_weight(0.0) == 1.0
    remove(one, 0.0)
    one.renew()
    assert not one.takes_requests(0.0)


def test_its_weight_grows_in_steps_at_the_times_that_it_tells() -> None:
    one = health()
    remove(one, 0.0)
    bring_back(one, 1 / 3)
    now, weights = 1 / 3, []
    while now < inf:
        weights.append(one.effective_weight(now))
        now, before = one.changes_at(now), now
        assert now > before
    assert len(weights) == NUM_STEPS + 1
    assert (weights[0], weights[-1]) == pytest.approx((0.1, 1.0))
    assert weights == sorted(weights)


def test_without_slow_start_it_has_its_whole_weight_at_once() -> None:
    one = health(RoutingPolicy(jitter=0.0, slow_start_time=0.0))
    remove(one, 0.0)
    bring_back(one, 10.0)
    assert one.effective_weight(10.0) == 1.0
    assert one.changes_at(10.0) == inf


def test_real_failures_take_it_out_though_its_probes_pass() -> None:
    one = health()
    attempt(one, "failure", 0.0, times=10)
    bring_back(one, 1.0)
    assert not one.takes_requests(1.0)
    assert one.changes_at(1.0) == one.ready_at(1.0) == 5.0


def test_half_open_it_has_a_share_of_its_weight_and_grows_once_closed() -> None:
    one = health()
    attempt(one, "failure", 0.0, times=10)
    assert one.effective_weight(5.0) == 0.1
    attempt(one, "success", 6.0, times=3)
    assert [one.effective_weight(now) for now in (6.0, 36.0)] == pytest.approx([0.1, 1.0])
    assert one.changes_at(6.0) == 7.5


def test_a_draining_endpoint_takes_nothing_and_comes_back_as_it_was() -> None:
    one = health()
    one.is_draining = True
    assert not one.takes_requests(0.0)
    assert one.effective_weight(0.0) == 0.0
    assert one.ready_at(0.0) == inf
    one.is_draining = False
    assert one.effective_weight(0.0) == 1.0


def test_a_request_that_ends_while_its_endpoint_drains_still_counts() -> None:
    one = health()
    running = [one.breaker.begin(0.0) for _ in range(10)]
    one.is_draining = True
    for period in running:
        one.breaker.end(period, "failure", 1.0)
    assert one.breaker.state(1.0) == "open"


def test_a_503_names_the_earliest_time_that_something_may_change() -> None:
    opened, removed, draining = health(), health(), health()
    attempt(opened, "failure", 0.0, times=10)  # may answer at 5
    remove(removed, 0.0)  # probed again at 5
    draining.is_draining = True
    assert retry_after([removed, opened, draining], POLICY, 0.0) == 5.0
    assert retry_after([removed, draining], POLICY, 0.0) == 5.0
    assert retry_after([removed, draining], POLICY, 3.0) == 2.0


def test_a_503_never_says_at_once() -> None:
    one = health()
    attempt(one, "failure", 0.0, times=10)
    for _ in range(3):
        one.breaker.begin(5.0)
    assert not one.takes_requests(5.0)
    assert retry_after([one], POLICY, 5.0) == 1.0


def test_where_nothing_changes_by_itself_a_503_still_names_a_time() -> None:
    draining = health()
    draining.is_draining = True
    assert retry_after([draining], POLICY, 0.0) == 5.0
    assert retry_after([], POLICY, 0.0) == 5.0


class Machine(RuleBasedStateMachine):
    """Whatever happens, its answers agree with one another and none comes too late."""

    def __init__(self) -> None:
        super().__init__()
        policy = RoutingPolicy(failure_threshold=2, success_threshold=2, max_half_open=1)
        self.one = EndpointHealth(Endpoint("a", 2.0), policy, Random(0), 0.0)
        self.now = 0.0
        self.in_flight: list[int] = []

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 10.0, 400.0]))
    def wait(self, seconds: float) -> None:
        before, takes_requests = self.now, self.one.takes_requests(self.now)
        self.now += seconds
        if self.one.changes_at(before) > self.now:
            weight = self.one.effective_weight(before)
            assert self.one.takes_requests(self.now) == takes_requests
            assert self.one.effective_weight(self.now) == weight

    @precondition(lambda self: self.one.takes_requests(self.now))
    @rule()
    def begin(self) -> None:
        self.in_flight.append(self.one.breaker.begin(self.now))

    @precondition(lambda self: self.in_flight)
    @rule(outcome=st.sampled_from(["success", "failure", "failure", None]))
    def end(self, outcome: Outcome | None) -> None:
        self.one.breaker.end(self.in_flight.pop(0), outcome, self.now)

    @rule(passed=st.booleans())
    def probe(self, *, passed: bool) -> None:
        self.now = max(self.now, self.one.next_probe_at)
        self.one.probing.record(passed=passed, now=self.now)

    @rule(draining=st.booleans())
    def drain(self, *, draining: bool) -> None:
        self.one.is_draining = draining

    @invariant()
    def its_weight_is_there_when_it_takes_requests(self) -> None:
        weight = self.one.effective_weight(self.now)
        assert 0.0 <= weight <= 2.0
        assert (weight >= 0.2 - 1e-9) == self.one.takes_requests(self.now)

    @invariant()
    def it_is_ready_only_where_it_says_so(self) -> None:
        assert self.one.ready_at(self.now) >= self.now
        if self.one.takes_requests(self.now):
            assert self.one.ready_at(self.now) == self.now
        assert self.one.changes_at(self.now) > self.now


TestHealthHoldsTogether = Machine.TestCase
