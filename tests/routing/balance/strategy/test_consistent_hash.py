from collections import Counter
from math import ceil, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet
from headrace.routing.balance.strategy.consistent_hash import BOUND
from headrace.routing.balance.strategy.strategy import RequestKey

USERS = [RequestKey(user=f"user-{number}") for number in range(800)]
NAMES = st.lists(st.text(min_size=1), min_size=2, max_size=30, unique=True)
rarely = settings(max_examples=20, deadline=None)


def homes(fleet: Fleet) -> list[Endpoint | None]:
    """Who gets each user while nothing is in flight, when nobody is full."""
    return [fleet.choose(user, 0.0) for user in USERS]


def within_chance(found: int, share: float) -> bool:
    """Six standard deviations of a draw by so many users."""
    num = len(USERS)
    return abs(found - num * share) <= 6 * sqrt(num * share * (1 - share)) + 1


@rarely
@given(NAMES)
def test_one_that_goes_moves_only_its_own_users_and_gets_them_back(names: list[str]) -> None:
    endpoints = [Endpoint(name) for name in names]
    fleet = fleet_of(endpoints, "consistent_hash")
    before = homes(fleet)
    fleet.place(gone := endpoints[0], 0.0)
    without = homes(fleet)
    assert all(a is b for a, b in zip(before, without, strict=True) if a is not gone)
    assert within_chance(before.count(gone), 1 / len(names))
    fleet.place(gone, 1.0)
    assert homes(fleet) == before


@rarely
@given(NAMES)
def test_one_that_comes_takes_only_its_share(names: list[str]) -> None:
    first, *others = [Endpoint(name) for name in names]
    fleet = fleet_of(others, "consistent_hash")
    before = homes(fleet)
    fleet.place(first, 1.0)
    moved = [b for a, b in zip(before, homes(fleet), strict=True) if a is not b]
    assert set(moved) <= {first}
    assert within_chance(len(moved), 1 / len(names))


def test_users_of_one_that_goes_are_spread_over_all_the_others() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(6)]
    fleet = fleet_of(endpoints, "consistent_hash")
    before = homes(fleet)
    fleet.place(gone := endpoints[2], 0.0)
    moved = Counter(b for a, b in zip(before, homes(fleet), strict=True) if a is gone)
    assert len(moved) == 5
    assert max(moved.values()) < 1.6 * min(moved.values())


@rarely
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=1, max_size=10))
def test_shares_are_those_of_the_weights(weights: list[float]) -> None:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    found = homes(fleet_of(endpoints, "consistent_hash"))
    for endpoint in endpoints:
        assert within_chance(found.count(endpoint), endpoint.weight / sum(weights))


def test_more_weight_takes_users_and_gives_none_away() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(5)]
    fleet = fleet_of(endpoints, "consistent_hash")
    before = homes(fleet)
    fleet.place(endpoints[3], 2.0)
    moved = {b for a, b in zip(before, homes(fleet), strict=True) if a is not b}
    assert moved == {endpoints[3]}


def test_weights_that_all_grow_alike_move_nobody() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(5)]
    fleet = fleet_of(endpoints, "consistent_hash")
    before = homes(fleet)
    for endpoint in endpoints[:4]:
        fleet.place(endpoint, 3.0)
    assert homes(fleet) != before
    fleet.place(endpoints[4], 3.0)
    assert homes(fleet) == before


def test_a_user_s_home_is_the_same_in_every_process_and_release() -> None:
    fleet = fleet_of([Endpoint(f"e{number}") for number in range(5)], "consistent_hash")
    found = " ".join(home.name for home in homes(fleet)[:8] if home)
    assert found == "e4 e4 e1 e3 e0 e2 e2 e0"


@rarely
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 7), max_size=3)), max_size=150),
)
def test_nobody_gets_more_than_the_bound_times_its_share(
    weights: list[float], requests: list[tuple[int, set[int]]]
) -> None:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    fleet = fleet_of(endpoints, "consistent_hash")
    for user, numbers in requests:
        excluding = {endpoints[n] for n in numbers if n < len(endpoints)}
        if (chosen := fleet.choose(RequestKey(user=str(user)), 0.0, excluding)) is None:
            assert len(excluding) == len(endpoints)
            continue
        fleet.begin(chosen, 1)
        others = [endpoint for endpoint in endpoints if endpoint not in excluding]
        in_flight = sum(endpoint.num_in_flight for endpoint in others)
        share = chosen.weight / sum(endpoint.weight for endpoint in others)
        assert chosen.num_in_flight <= ceil(BOUND * in_flight * share * (1 + 1e-12))


def test_a_user_comes_home_when_there_is_room_again() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(4)]
    fleet = fleet_of(endpoints, "consistent_hash")
    key = RequestKey(user="me")
    home = fleet.choose(key, 0.0)
    assert home is not None
    fleet.begin(home, 1)
    fleet.begin(home, 1)
    assert fleet.choose(key, 0.0) is not home
    fleet.end(home, 1)
    fleet.end(home, 1)
    assert fleet.choose(key, 0.0) is home


def test_room_is_found_however_many_are_full() -> None:
    endpoints = [Endpoint(f"e{number}") for number in range(12)]
    fleet = fleet_of(endpoints, "consistent_hash")
    for full in endpoints[:8]:
        fleet.begin(full, 1)
        fleet.begin(full, 1)
    assert set(homes(fleet)) == set(endpoints[8:])


def test_requests_without_a_user_go_to_the_less_loaded() -> None:
    busy, idle = Endpoint("busy"), Endpoint("idle")
    fleet = fleet_of([busy, idle], "consistent_hash")
    fleet.begin(busy, 100)
    assert {fleet.choose(RequestKey(num_tokens=5), 0.0) for _ in range(20)} == {idle}


def test_an_empty_name_is_a_user_like_any_other() -> None:
    fleet = fleet_of([Endpoint(f"e{n}") for n in range(9)], "consistent_hash")
    assert len({fleet.choose(RequestKey(user=""), 0.0) for _ in range(20)}) == 1
    assert fleet.choose(RequestKey(user="\ud800"), 0.0) is not None
    with pytest.raises(AttributeError):
        RequestKey().user = "frozen"  # type: ignore[misc]
