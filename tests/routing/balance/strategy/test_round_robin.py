from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(1, 5))
def test_everybody_gets_one_turn_a_round_whatever_its_weight(
    weights: list[float], rounds: int
) -> None:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    fleet = fleet_of(endpoints, "round_robin")
    for _ in range(rounds):
        turns = Counter(fleet.choose(RequestKey(), 0.0) for _ in endpoints)
        assert turns == Counter(endpoints)


def test_an_endpoint_without_weight_has_no_turn() -> None:
    endpoints = [Endpoint("a"), Endpoint("none", 0.0), Endpoint("b")]
    fleet = fleet_of(endpoints, "round_robin")
    assert {fleet.choose(RequestKey(), 0.0) for _ in range(6)} == {endpoints[0], endpoints[2]}
