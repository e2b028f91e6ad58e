from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.routing.health.breaker import Breaker
from headrace.routing.outcome import Outcome
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(jitter=0.0)


def breaker(policy: RoutingPolicy = POLICY) -> Breaker:
    return Breaker(policy, Random(0))


def attempt(one: Breaker, outcome: Outcome | None, now: float) -> None:
    one.end(one.begin(now), outcome, now)


def fail(one: Breaker, now: float, times: int = POLICY.failure_threshold) -> None:
    for _ in range(times):
        attempt(one, "failure", now)


def succeed(one: Breaker, now: float, times: int = POLICY.success_threshold) -> None:
    for _ in range(times):
        attempt(one, "success", now)


def test_ten_failures_in_a_row_open_it_however_busy_it_was() -> None:
    one = breaker()
    succeed(one, 0.0, times=5000)
    fail(one, 1.0, times=9)
    assert one.takes_requests(1.0)
    fail(one, 1.0, times=1)
    assert one.state(1.0) == "open"
    assert not one.takes_requests(5.9)


def test_ten_failures_in_a_row_open_it_however_slowly_they_come() -> None:
    one = breaker()
    for minute in range(10):
        fail(one, 60.0 * minute, times=1)
    assert one.state(540.0) == "open"


def test_half_of_a_window_opens_it_though_successes_come_between() -> None:
    one = breaker()
    for second in range(10):
        assert one.state(second) == "closed"
        attempt(one, "success", second)
        attempt(one, "failure", second)
    assert one.state(9.0) == "open"


def test_less_than_half_of_a_window_does_not() -> None:
    one = breaker()
    for second in range(300):
        for outcome in ("success", "failure", "success"):
            attempt(one, outcome, second)
    assert one.state(300.0) == "closed"


def test_failures_that_have_left_the_window_no_longer_count() -> None:
    one = breaker()
    for second in range(0, 10_000, 10):  # three in a window, each one of two
        attempt(one, "success", second)
        attempt(one, "failure", second)
    assert one.state(10_000.0) == "closed"


@pytest.mark.parametrize("outcome", ["client", "neutral", None])
def test_what_is_no_failure_never_opens_it(outcome: Outcome | None) -> None:
    one = breaker()
    for _ in range(1000):
        attempt(one, outcome, 1.0)
    assert one.state(1.0) == "closed"


def test_back_pressure_between_failures_does_not_hide_them() -> None:
    one = breaker()
    for _ in range(10):
        attempt(one, "failure", 1.0)
        if one.takes_requests(1.0):
            attempt(one, "neutral", 1.0)
            attempt(one, "neutral", 1.0)
    assert one.state(1.0) == "open"


def test_half_open_it_lets_three_at_a_time_through_and_closes_after_three_successes() -> None:
    one = breaker()
    fail(one, 0.0)
    assert one.state(5.0) == "half_open"
    probes = [one.begin(5.0) for _ in range(3)]
    assert not one.takes_requests(5.0)
    one.end(probes[0], "success", 6.0)
    assert one.takes_requests(6.0)
    one.end(probes[1], "success", 6.0)
    assert one.state(6.0) == "half_open"
    one.end(probes[2], "success", 7.0)
    assert one.state(7.0) == "closed"
    assert one.closed_at == 7.0


def test_what_was_before_it_closed_counts_no_more() -> None:
    one = breaker()
    succeed(one, 0.0, times=1000)
    fail(one, 0.0)
    succeed(one, 5.0)
    fail(one, 5.0, times=9)
    succeed(one, 5.0, times=7)
    assert one.state(5.0) == "closed"
    fail(one, 5.0, times=1)
    assert one.state(5.0) == "open"


def test_one_failed_probe_opens_it_again() -> None:
    one = breaker()
    fail(one, 0.0)
    succeed(one, 5.0, times=2)
    attempt(one, "failure", 5.0)
    assert one.state(5.0) == "open"
    succeed(one, 15.0, times=2)
    assert one.state(15.0) == "half_open"  # the two before count no more


@pytest.mark.parametrize("outcome", ["client", "neutral", None])
def test_a_probe_that_proves_nothing_gives_its_place_back(outcome: Outcome | None) -> None:
    one = breaker()
    fail(one, 0.0)
    for _ in range(100):
        attempt(one, outcome, 5.0)
    assert one.state(5.0) == "half_open"
    assert [one.begin(5.0) for _ in range(3)]


def test_what_began_before_it_opened_is_no_probe() -> None:
    one = breaker()
    streams = [one.begin(0.0) for _ in range(5)]
    fail(one, 0.0)
    probe = one.begin(5.0)
    for stream, outcome in zip(streams, ("failure", "success", "success", "success"), strict=False):
        one.end(stream, outcome, 6.0)
    assert one.state(6.0) == "half_open"
    one.end(probe, "success", 6.0)
    succeed(one, 6.0, times=2)
    one.end(streams[-1], "failure", 6.0)
    assert one.state(6.0) == "closed"


def test_it_stays_open_twice_as_long_each_time_up_to_a_minute() -> None:
    one, now, times = breaker(), 0.0, []
    fail(one, now)
    for _ in range(2000):
        times.append(one.ready_at(now) - now)
        now = one.ready_at(now)
        attempt(one, "failure", now)
    assert times[:6] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert set(times[4:]) == {60.0}


def test_one_that_closes_and_opens_again_soon_is_not_forgiven() -> None:
    one = breaker()
    fail(one, 0.0)
    succeed(one, 5.0)
    fail(one, 6.0)
    assert one.ready_at(6.0) == 16.0


def test_one_that_was_calm_is_forgiven() -> None:
    one = breaker()
    fail(one, 0.0)
    succeed(one, 5.0)
    fail(one, 305.0)
    assert one.ready_at(305.0) == 310.0


def test_breakers_that_open_together_do_not_probe_together() -> None:
    random = Random(0)
    ready = set()
    for _ in range(100):
        one = Breaker(RoutingPolicy(), random)
        fail(one, 0.0)
        ready.add(one.ready_at(0.0))
    assert len(ready) == 100
    assert min(ready) >= 4.0
    assert max(ready) <= 6.0


class Machine(RuleBasedStateMachine):
    """Against a model that keeps every outcome of a period and counts anew each time."""

    policy = RoutingPolicy(
        jitter=0.0,
        failure_threshold=3,
        failure_window=10.0,
        open_time=4.0,
        max_open_time=16.0,
        max_half_open=2,
        success_threshold=2,
        calm_time=40.0,
    )

    def __init__(self) -> None:
        super().__init__()
        self.one = Breaker(self.policy, Random(0))
        self.now = 0.0
        self.in_flight: list[tuple[int, int]] = []  # what the breaker said, the model's period
        self.period = 0
        self.log: list[tuple[float, Outcome]] = []  # of this period, neutral ones left out
        self.open_until: float | None = None
        self.open_time = 0.0
        self.closed_at: float | None = None

    @property
    def state(self) -> str:
        if self.open_until is None:
            return "closed"
        return "open" if self.now < self.open_until else "half_open"

    @property
    def num_probes(self) -> int:
        return sum(period == self.period for _, period in self.in_flight)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 20.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.one.takes_requests(self.now))
    @rule()
    def begin(self) -> None:
        self.in_flight.append((self.one.begin(self.now), self.period))

    @precondition(lambda self: self.in_flight)
    @rule(
        data=st.data(), outcome=st.sampled_from(["success", "client", "neutral", "failure", None])
    )
    def end(self, data: st.DataObject, outcome: Outcome | None) -> None:
        ticket, period = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.one.end(ticket, outcome, self.now)
        if period == self.period and outcome not in {None, "neutral"}:
            self.judge(outcome)

    @precondition(lambda self: self.one.takes_requests(self.now))
    @rule(number=st.integers(1, 4))
    def fail_some(self, number: int) -> None:
        for _ in range(number):
            if self.one.takes_requests(self.now):
                self.one.end(self.one.begin(self.now), "failure", self.now)
                self.judge("failure")

    def judge(self, outcome: Outcome) -> None:
        was_half_open = self.state == "half_open"
        self.log.append((self.now, outcome))
        if was_half_open:
            if outcome == "failure":
                self.open()
            elif [outcome for _, outcome in self.log].count("success") == 2:
                self.closed_at, self.open_until = self.now, None
                self.next_period()
        elif outcome == "failure" and (self.are_in_a_row() or self.are_half_of_the_window()):
            self.open()

    def are_in_a_row(self) -> bool:
        return [outcome for _, outcome in self.log[-3:]] == ["failure"] * 3

    def are_half_of_the_window(self) -> bool:
        recent = [outcome for at, outcome in self.log if int(at) > int(self.now) - 10]
        return recent.count("failure") >= max(3, len(recent) / 2)

    def open(self) -> None:
        calm_since = -40.0 if self.closed_at is None else self.closed_at
        if self.state == "closed" and self.now - calm_since >= 40.0:
            self.open_time = 4.0
        else:
            self.open_time = min(16.0, 2 * self.open_time)
        self.open_until = self.now + self.open_time
        self.next_period()

    def next_period(self) -> None:
        self.period += 1
        self.log.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.one.state(self.now) == self.state
        may_probe = self.state == "half_open" and self.num_probes < 2
        assert self.one.takes_requests(self.now) == (self.state == "closed" or may_probe)
        assert self.one.ready_at(self.now) == max(self.now, self.open_until or 0.0)

    @invariant()
    def no_more_probes_are_out_than_may(self) -> None:
        if self.state != "closed":
            assert 0 <= self.one._num_probes == self.num_probes <= 2


TestBreakerAgainstTheModel = Machine.TestCase
