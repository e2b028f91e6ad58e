from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleets import fleet_of
from headrace.endpoints import StrategyName
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet
from headrace.routing.balance.strategy.select import STRATEGIES
from headrace.routing.balance.strategy.strategy import RequestKey

WEIGHTS = st.sampled_from([0.0, 1e-5, 0.5, 1.0, 3.0, 1e4])
KEYS = st.builds(
    RequestKey,
    user=st.none() | st.text(max_size=3),
    prompt=st.sampled_from(["", "a" * 600, "a" * 1500, "b" * 3000, [1] * 100, [2] * 300]),
    num_tokens=st.integers(0, 1000),
    salt=st.sampled_from(["", "tenant"]),
)
NUM_ENDPOINTS = 6
ANY = st.integers(0, 1000)
WHICH = st.integers(0, NUM_ENDPOINTS - 1)


class FleetMachine(RuleBasedStateMachine):
    """Everything that may happen to a fleet, beside a plain account of it."""

    @initialize(name=st.sampled_from(sorted(STRATEGIES)))
    def build(self, name: StrategyName) -> None:
        self.fleet = Fleet(name, Random(0))
        self.all = [Endpoint(f"e{number}") for number in range(NUM_ENDPOINTS)]
        self.weights = dict.fromkeys(self.all, 0.0)
        self.sent: list[tuple[Endpoint, int]] = []
        self.now = 0.0

    @rule(which=WHICH, weight=WEIGHTS)
    def place(self, which: int, weight: float) -> None:
        self.fleet.place(self.all[which], weight)
        self.weights[self.all[which]] = weight

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=KEYS, excluded=st.sets(WHICH))
    def send(self, key: RequestKey, excluded: set[int]) -> None:
        excluding = {self.all[number] for number in excluded}
        left = {endpoint for endpoint, weight in self.weights.items() if weight} - excluding
        chosen = self.fleet.choose(key, self.now, excluding)
        assert (chosen is None) == (not left)
        if chosen is not None:
            assert chosen in left
            self.fleet.begin(chosen, key.num_tokens)
            self.sent.append((chosen, key.num_tokens))

    @precondition(lambda self: self.sent)
    @rule(which=ANY, num_tokens=st.integers(0, 100))
    def answer(self, which: int, num_tokens: int) -> None:
        endpoint, held = self.sent.pop(which % len(self.sent))
        self.fleet.observe_latency(endpoint, num_tokens / 10, self.now)
        self.fleet.grow(endpoint, num_tokens)
        self.fleet.end(endpoint, held + num_tokens)

    @invariant()
    def it_is_as_told(self) -> None:
        self.fleet.check()
        assert set(self.fleet.taking) == {each for each, weight in self.weights.items() if weight}
        for endpoint, weight in self.weights.items():
            assert self.fleet.weight(endpoint) == weight
            assert (endpoint in self.fleet.taking) == (weight > 0)
            mine = [held for e, held in self.sent if e is endpoint]
            assert (endpoint.num_in_flight, endpoint.tokens_in_flight) == (len(mine), sum(mine))


FleetMachine.TestCase.settings = settings(deadline=None, max_examples=100)
TestFleet = FleetMachine.TestCase


def turns(fleet: Fleet, num_requests: int = 1000) -> Counter[Endpoint | None]:
    return Counter(fleet.choose(RequestKey(), 0.0) for _ in range(num_requests))


@pytest.mark.parametrize("name", STRATEGIES)
def test_nobody_is_chosen_from_a_fleet_that_is_empty_yet(name: StrategyName) -> None:
    fleet = Fleet(name, Random(0))
    assert fleet.choose(RequestKey(), 0.0) is None
    fleet.place(late := Endpoint("late"), 1.0)
    assert fleet.choose(RequestKey(), 0.0) is late


@pytest.mark.parametrize("name", ["round_robin", "weighted"])
@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
def test_a_part_of_its_weight_brings_an_endpoint_a_part_of_its_turns(
    name: StrategyName, part: float
) -> None:
    a, b = Endpoint("a"), Endpoint("b")
    fleet = fleet_of([a, b], name)
    fleet.place(b, part)
    assert turns(fleet)[b] == pytest.approx(1000 * part / (1 + part), abs=2)


def test_weights_that_change_often_disturb_no_turns() -> None:
    a, b = Endpoint("a", 9), Endpoint("b", 1)
    fleet = fleet_of([a, b], "weighted")
    num_b = 0
    for number in range(1000):
        num_b += turns(fleet, 1)[b]
        factor = 1 + number % 7
        fleet.place(a, 9.0 * factor)
        fleet.place(b, 1.0 * factor)
    assert num_b == pytest.approx(100, abs=2)


def test_a_first_byte_changes_what_its_endpoint_is_known_for() -> None:
    a, b = Endpoint("a"), Endpoint("b")
    fleet = fleet_of([a, b], "least_latency")
    fleet.observe_latency(a, 0.1, 0.0)
    fleet.observe_latency(b, 0.3, 0.0)
    assert (a.latency, b.latency) == (0.1, 0.3)
    assert set(turns(fleet, 20)) == {a}
