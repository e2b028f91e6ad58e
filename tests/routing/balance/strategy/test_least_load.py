import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey


def test_the_less_loaded_of_two_is_chosen_and_not_the_one_with_fewer_requests() -> None:
    many, long = Endpoint("many"), Endpoint("long")
    fleet = fleet_of([many, long], "least_load")
    for _ in range(10):
        fleet.begin(many, 10)
    fleet.begin(long, 1000)
    assert {fleet.choose(RequestKey(num_tokens=5), 0.0) for _ in range(50)} == {many}


def test_load_counts_for_the_weight() -> None:
    strong, weak = Endpoint("strong", 10), Endpoint("weak", 1)
    fleet = fleet_of([strong, weak], "least_load")
    fleet.begin(strong, 500)
    fleet.begin(weak, 100)
    assert {fleet.choose(RequestKey(num_tokens=5), 0.0) for _ in range(50)} == {strong}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=8), st.integers(0, 1000))
def test_shares_approach_the_weights(weights: list[float], seed: int) -> None:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    fleet = fleet_of(endpoints, "least_load", seed)
    for _ in range(1000):
        chosen = fleet.choose(RequestKey(num_tokens=1), 0.0)
        assert chosen is not None
        fleet.begin(chosen, 1)
    for endpoint in endpoints:
        share = 1000 * endpoint.weight / sum(weights)
        assert endpoint.num_in_flight == pytest.approx(share, abs=25)


def test_one_heavy_endpoint_among_many_light_ones_gets_its_share() -> None:
    heavy = Endpoint("heavy", 90)
    fleet = fleet_of([heavy, *(Endpoint(f"e{n}") for n in range(10))], "least_load")
    for _ in range(2000):
        chosen = fleet.choose(RequestKey(num_tokens=1), 0.0)
        assert chosen is not None
        fleet.begin(chosen, 1)
    assert heavy.num_in_flight / 2000 == pytest.approx(0.9, abs=0.02)
