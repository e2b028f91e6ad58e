from math import inf
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.endpoints import EndpointStatus, StrategyName
from headrace.errors import ConfigurationError
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.select import STRATEGIES
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.health.members import MAX_WEIGHT, MIN_WEIGHT, Members
from headrace.routing.health.sent import Sent
from headrace.routing.outcome import Outcome
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(
    jitter=0.0, failure_threshold=2, success_threshold=2, max_half_open=2, slow_start_time=10.0
)
KEY = RequestKey(user="me", num_tokens=5)
ANY = st.integers(0, 1000)


def members_of(*endpoints: Endpoint, strategy: StrategyName = "least_load") -> Members:
    """Workers, which are not probed."""
    members = Members(strategy, POLICY, Random(0))
    for endpoint in endpoints:
        members.add(endpoint, 0.0, is_probed=False)
    return members


def attempt(
    members: Members, endpoint: Endpoint, outcome: Outcome | None, now: float, times: int = 1
) -> None:
    for _ in range(times):
        members.begin(endpoint, 1, now).end(outcome, now, f"it was a {outcome}")


def status_of(members: Members, endpoint: Endpoint, now: float) -> EndpointStatus:
    return next(status for status in members.statuses(now) if status.name == endpoint.name)


class MembersMachine(RuleBasedStateMachine):
    """Whatever happens, those get requests whose health takes them, and nobody else."""

    @initialize(name=st.sampled_from(sorted(STRATEGIES)), num_probed=st.integers(0, 4))
    def build(self, name: StrategyName, num_probed: int) -> None:
        self.members = Members(name, POLICY, Random(0))
        self.now = 0.0
        self.num_added = 0
        self.endpoints: list[Endpoint] = []
        self.probed: set[Endpoint] = set()
        self.sent: list[Sent] = []
        for number in range(6):
            self.add(1.0, is_probed=number < num_probed)

    @rule(weight=st.sampled_from([0.0, 1.0, 3.0]), is_probed=st.booleans())
    def add(self, weight: float, *, is_probed: bool) -> None:
        endpoint = Endpoint(f"e{self.num_added}", weight)
        self.num_added += 1
        self.members.add(endpoint, self.now, is_probed=is_probed)
        self.endpoints.append(endpoint)
        if is_probed:
            self.probed.add(endpoint)

    @precondition(lambda self: self.endpoints)
    @rule(which=ANY, draining=st.booleans())
    def drain(self, which: int, *, draining: bool) -> None:
        endpoint = self.endpoints[which % len(self.endpoints)]
        self.members.set_draining(endpoint, draining, self.now)
        assert self.members.is_draining(endpoint) == draining

    @precondition(lambda self: self.endpoints)
    @rule(which=ANY)
    def renew(self, which: int) -> None:
        self.members.renew(self.endpoints[which % len(self.endpoints)], self.now)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0, 30.0, 400.0]) | st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(excluded=st.lists(ANY, max_size=5))
    def send(self, excluded: list[int]) -> None:
        excluding = {self.endpoints[n % len(self.endpoints)] for n in excluded if self.endpoints}
        left = self.taking() - {endpoint.name for endpoint in excluding}
        chosen = self.members.choose(KEY, self.now, excluding)
        assert (chosen is None) == (not left)
        if chosen is not None:
            assert chosen.name in left
            self.sent.append(self.members.begin(chosen, 5, self.now))

    @precondition(lambda self: self.sent)
    @rule(which=ANY, outcome=st.sampled_from(["success", "failure", "failure", "client", None]))
    def end(self, which: int, outcome: Outcome | None) -> None:
        one = self.sent.pop(which % len(self.sent))
        one.first_byte(self.now)
        one.grow(3)
        one.end(outcome, self.now, "broken" if outcome == "failure" else None)

    @precondition(lambda self: self.probed)
    @rule(which=ANY, passed=st.booleans())
    def probe(self, which: int, *, passed: bool) -> None:
        endpoint = sorted(self.probed, key=lambda each: each.name)[which % len(self.probed)]
        self.now = max(self.now, self.members.next_probe_at(endpoint))
        self.members.record_probe(endpoint, passed=passed, reason="silent", now=self.now)

    @rule()
    def look(self) -> None:
        assert self.members.can_take(self.now) == bool(self.taking())
        assert {each.name for each in self.members.taking(self.now)} == self.taking()

    @invariant()
    def it_holds_together(self) -> None:
        self.members.check(self.now)
        assert POLICY.min_retry_after <= self.members.retry_after(self.now) < inf
        for endpoint in self.endpoints:
            assert (self.members.next_probe_at(endpoint) < inf) == (endpoint in self.probed)
            mine = [one for one in self.sent if one.endpoint is endpoint]
            assert (endpoint.num_in_flight, endpoint.tokens_in_flight) == (
                len(mine),
                5 * len(mine),
            )

    def taking(self) -> set[str]:
        return {each.name for each in self.members.statuses(self.now) if each.is_taking}


MembersMachine.TestCase.settings = settings(deadline=None, max_examples=100)
TestMembers = MembersMachine.TestCase


def test_one_good_probe_brings_back_what_nobody_stands_in_for() -> None:
    members = Members("round_robin", RoutingPolicy(), Random(0))
    one, other = Endpoint("one", kind="upstream"), Endpoint("other", kind="upstream")
    for endpoint in (one, other):
        members.add(endpoint, 0.0, is_probed=True)
        members.record_probe(endpoint, passed=False, reason="down", now=0.0)
    assert not members.can_take(0.0)
    members.record_probe(one, passed=True, reason=None, now=5.0)
    assert list(members.taking(5.0)) == [one]
    members.record_probe(other, passed=True, reason=None, now=5.0)
    assert list(members.taking(5.0)) == [one], "who has a stand-in shows that it stays"


@pytest.mark.parametrize("weight", [-1.0, float("nan"), inf, MIN_WEIGHT / 2, MAX_WEIGHT * 2])
def test_a_weight_out_of_range_is_refused_by_the_endpoint_s_name(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="the weight of odd is"):
        members_of(Endpoint("even"), Endpoint("odd", weight))


def test_two_endpoints_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two endpoints have the name a"):
        members_of(Endpoint("a"), Endpoint("a"))


def test_an_endpoint_without_weight_gets_nothing_and_promises_nothing() -> None:
    members = members_of(none := Endpoint("none", 0.0))
    assert members.choose(KEY, 0.0) is None
    assert members.retry_after(0.0) == POLICY.suspect_probe_interval
    assert not status_of(members, none, 0.0).is_taking
    assert not members.can_take(0.0)


def test_failures_send_requests_elsewhere_until_the_open_time_is_over() -> None:
    members = members_of(bad := Endpoint("bad"), good := Endpoint("good"))
    attempt(members, bad, "failure", 0.0, times=2)
    assert {members.choose(KEY, 4.9) for _ in range(20)} == {good}
    assert members.choose(KEY, 4.9, {good}) is None
    assert members.choose(KEY, 5.0, {good}) is bad


def test_a_half_open_endpoint_gets_no_more_than_its_places_until_one_ends() -> None:
    members = members_of(only := Endpoint("only"))
    attempt(members, only, "failure", 0.0, times=2)
    places = []
    while members.choose(KEY, 6.0) is only:
        places.append(members.begin(only, 1, 6.0))
    assert len(places) == POLICY.max_half_open
    places[0].end("client", 7.0)
    assert members.choose(KEY, 7.0) is only


def test_an_endpoint_that_comes_back_gets_its_share_in_steps() -> None:
    a, b = Endpoint("a"), Endpoint("b")
    members = members_of(a, b, strategy="weighted")
    attempt(members, b, "failure", 0.0, times=2)
    members.choose(KEY, 5.0)
    attempt(members, b, "success", 100.0, times=2)
    expected = {100.0: 0.1, 105.0: 0.55, 110.0: 1.0, 200.0: 1.0}
    for now, part in expected.items():
        turns = [members.choose(KEY, now) for _ in range(1000)]
        assert turns.count(b) == pytest.approx(1000 * part / (1 + part), abs=3)


def test_a_restarted_worker_takes_its_whole_share_at_once() -> None:
    members = members_of(worker := Endpoint("worker", 2.0))
    last = members.begin(worker, 1, 0.0)
    attempt(members, worker, "failure", 0.0, times=2)
    members.set_draining(worker, draining=True, now=0.0)
    members.renew(worker, 1.0)
    assert members.choose(KEY, 1.0) is None
    members.set_draining(worker, draining=False, now=1.0)
    assert members.choose(KEY, 1.0) is worker
    last.end("failure", 1.0, "its process died")
    attempt(members, worker, "failure", 1.0)
    status = status_of(members, worker, 1.0)
    assert (status.breaker, status.weight, status.num_in_flight) == ("closed", 2.0, 0)


def test_nobody_waits_who_may_return_however_many_may_return_first() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(30)]
    members = members_of(*endpoints)
    for endpoint in endpoints:
        attempt(members, endpoint, "failure", 0.0, times=2)
    assert members.choose(KEY, 5.0, endpoints[:29]) is endpoints[29]


def test_one_choice_applies_only_some_of_what_is_due_and_a_look_all_of_it() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(30)]
    members = members_of(*endpoints)
    for endpoint in endpoints:
        attempt(members, endpoint, "failure", 0.0, times=2)
    assert len(members.taking(1.0)) == 0
    live = members.taking(1.0)
    members.choose(KEY, 5.0)
    assert len(live) == 4
    assert len(members.taking(5.0)) == 30


def test_a_first_byte_is_observed_once() -> None:
    members = members_of(endpoint := Endpoint("e"))
    one = members.begin(endpoint, 1, 10.0)
    one.first_byte(10.5)
    one.first_byte(99.0)
    one.end("success", 99.0)
    assert endpoint.latency == 0.5


def test_what_has_said_nothing_for_long_hangs() -> None:
    members = members_of(endpoint := Endpoint("e"))
    silent, answered = (members.begin(endpoint, 1, 5.0) for _ in range(2))
    answered.first_byte(6.0)
    assert not silent.is_hanging(5.0 + POLICY.hang_time - 0.1)
    assert silent.is_hanging(5.0 + POLICY.hang_time)
    assert not answered.is_hanging(99.0)


def test_a_status_tells_why_an_endpoint_takes_no_requests_and_nothing_older() -> None:
    members = Members("least_load", POLICY, Random(0))
    members.add(one := Endpoint("one", 2.0, kind="upstream"), 0.0, is_probed=True)
    running = members.begin(one, 7, 0.0)
    assert members.statuses(0.0) == [
        EndpointStatus(
            name="one",
            kind="upstream",
            is_taking=True,
            breaker="closed",
            weight=2.0,
            num_in_flight=1,
            tokens_in_flight=7,
            latency=None,
            reason=None,
        )
    ]
    members.record_probe(one, passed=False, reason="it answered 503", now=0.0)
    assert status_of(members, one, 0.0).reason == "it answered 503"
    assert status_of(members, one, 0.0).weight == 0.0
    for now in (5.0, 10.0):
        members.record_probe(one, passed=True, reason=None, now=now)
    assert status_of(members, one, 10.0).reason is None
    running.end("failure", 10.0, "it broke off")
    attempt(members, one, "failure", 10.0)
    assert status_of(members, one, 10.0).reason == "it was a failure"
    assert status_of(members, one, 15.0).reason is None
    members.renew(one, 15.0)
    members.set_draining(one, draining=True, now=15.0)
    assert status_of(members, one, 15.0).reason is None
