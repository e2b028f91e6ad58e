from math import inf
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.routing.health.probing import Probing
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(jitter=0.0)


def probing(policy: RoutingPolicy = POLICY, now: float = 0.0) -> Probing:
    return Probing(policy, Random(0), now)


def record(one: Probing, results: str, now: float | None = None) -> float:
    """Answer probes when they are due, or now: + passes, - fails. Gives the last one's time."""
    at = one.next_at if now is None else now
    for result in results:
        at = one.next_at if now is None else now
        one.record(passed=result == "+", now=at)
    return at


def test_an_endpoint_that_was_never_probed_is_in_and_its_probe_is_due() -> None:
    one = probing(now=7.0)
    assert one.is_in
    assert one.next_at == one.ready_at(7.0) == 7.0
    assert one.returned_at == -inf


def test_one_that_never_passed_is_out_by_its_first_failure() -> None:
    one = probing()
    record(one, "-")
    assert not one.is_in
    record(one, "++")
    assert one.is_in


def test_three_failures_in_a_row_take_it_out_and_two_passes_bring_it_back() -> None:
    one = probing()
    record(one, "+--+--")
    assert one.is_in
    record(one, "-")
    assert not one.is_in
    record(one, "+-+")
    assert not one.is_in
    returned_at = record(one, "+")
    assert one.is_in
    assert one.returned_at == returned_at


def test_it_is_probed_more_often_while_it_is_suspect() -> None:
    one = probing()
    waits = []
    for result in "++---++":
        now = record(one, result)
        waits.append(one.next_at - now)
    assert waits == [30.0, 30.0, 5.0, 5.0, 5.0, 5.0, 30.0]


@given(st.integers())
def test_probes_are_scattered_by_a_fifth(seed: int) -> None:
    one = Probing(RoutingPolicy(), Random(seed), 0.0)
    record(one, "+")
    assert 24.0 <= one.next_at <= 36.0


def test_one_that_flaps_needs_twice_as_many_good_probes_each_time() -> None:
    one = probing()
    record(one, "+")
    needed = []
    for _ in range(6):
        record(one, "---")
        number = 0
        while not one.is_in:
            record(one, "+")
            number += 1
        needed.append(number)
    assert needed == [2, 4, 8, 16, 16, 16]


def test_one_that_was_calm_for_long_is_forgiven() -> None:
    one = probing()
    now = record(one, "+---++---++++")
    record(one, "---++", now + 299.0)
    assert not one.is_in
    now = record(one, "++++++")
    record(one, "---++", now + 300.0)
    assert one.is_in


class Machine(RuleBasedStateMachine):
    """Against the results kept as a string, read anew each time."""

    policy = RoutingPolicy(calm_time=1e9, max_return_after=6)

    def __init__(self) -> None:
        super().__init__()
        self.one = Probing(self.policy, Random(0), 0.0)
        self.now = 0.0
        self.results = ""

    @rule(passed=st.booleans(), late=st.floats(0.0, 100.0))
    def answer(self, *, passed: bool, late: float) -> None:
        ready_at, was_in = self.one.ready_at(self.now), self.one.is_in
        self.now = self.one.next_at + late
        self.one.record(passed=passed, now=self.now)
        self.results += "+" if passed else "-"
        if self.one.is_in and not was_in:
            assert self.now >= ready_at - 1e-6

    @invariant()
    def agrees_with_its_results(self) -> None:
        is_in, needed, rest, outs = True, 1, self.results, 0
        for at, result in enumerate(self.results):
            rest = (rest if at else "") + result
            against = "-" if is_in else "+"
            if is_in:
                needed = 3 if "+" in self.results[:at] else 1
            if rest.endswith(against * needed):
                is_in, rest = not is_in, ""
                outs += not is_in
                needed = min(6, 2**outs)
        assert self.one.is_in == is_in

    @invariant()
    def the_next_probe_is_neither_missed_nor_hurried(self) -> None:
        if self.results:
            assert 4.0 - 1e-6 <= self.one.next_at - self.now <= 36.0 + 1e-6


TestProbingAgainstTheModel = Machine.TestCase
