from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet
from headrace.routing.balance.strategy.prefix_affinity import BETA
from headrace.routing.balance.strategy.prefixes import CHUNK_BYTES
from headrace.routing.balance.strategy.strategy import RequestKey


def key(letters: str, num_tokens: int = 100, salt: str = "") -> RequestKey:
    prompt = "".join(letter * CHUNK_BYTES for letter in letters)
    return RequestKey(prompt=prompt, num_tokens=num_tokens, salt=salt)


def fleet_by(*weights: float) -> Fleet:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    return fleet_of(endpoints, "prefix_affinity")


def take(fleet: Fleet, request: RequestKey) -> Endpoint:
    chosen = fleet.choose(request, 0.0)
    assert chosen is not None
    return chosen


def test_a_conversation_stays_where_it_began() -> None:
    fleet = fleet_by(1, 1, 1, 1)
    for number in range(20):
        first = take(fleet, key("xyz", salt=str(number)))
        for length in range(4, 10):
            assert take(fleet, key("xyzabcdef"[:length], salt=str(number))) is first


def test_the_longest_match_wins_between_equal_loads() -> None:
    fleet = fleet_by(1, 1)
    short, long = fleet.taking
    assert fleet.choose(key("xy"), 0.0, {long}) is short
    assert fleet.choose(key("xyz"), 0.0, {short}) is long
    assert {take(fleet, key("xyzw")) for _ in range(10)} == {long}


def test_a_miss_goes_to_the_least_loaded_and_not_to_the_smallest_cache() -> None:
    fleet = fleet_by(1, 1)
    empty, seasoned = fleet.taking
    for letters in "abcdef":
        fleet.choose(key(letters), 0.0, {empty})
    fleet.begin(empty, 50)
    assert {take(fleet, key(letter)) for letter in "uvwxyz"} == {seasoned}


def test_misses_are_shared_by_weight_while_all_are_idle() -> None:
    fleet = fleet_by(1, 3)
    heavy = list(fleet.taking)[1]
    chosen = [take(fleet, key("", salt=str(number))) for number in range(1000)]
    assert chosen.count(heavy) / 1000 == pytest.approx(0.75, abs=0.05)


def test_load_outweighs_a_match_and_a_match_outweighs_a_little_load() -> None:
    fleet = fleet_by(1, 1, 1, 1)
    home = take(fleet, key("xyz"))
    others = [endpoint for endpoint in fleet.taking if endpoint is not home]
    for other in others:
        fleet.begin(other, 1000)
    fleet.begin(home, 1500)
    assert take(fleet, key("xyz")) is home
    fleet.begin(home, 2000)
    assert take(fleet, key("xyz")) is not home


def test_a_holder_that_takes_no_requests_is_passed_over() -> None:
    fleet = fleet_by(1, 1)
    home = take(fleet, key("xyz"))
    fleet.place(home, 0.0)
    assert take(fleet, key("xyz")) is not home


def test_what_one_tenant_sent_draws_no_other() -> None:
    fleet = fleet_by(*[1] * 8)
    home = take(fleet, key("xyz", salt="a"))
    assert take(fleet, key("xyz", salt="a")) is home
    chosen = {take(fleet, key("xyz", salt=f"b{number}")) for number in range(60)}
    assert len(chosen) == 8


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=40),
    st.integers(1, 1000),
    st.lists(st.booleans(), min_size=1, max_size=150),
    st.integers(0, 100),
)
def test_equal_prompts_leave_nobody_with_more_than_the_bound_times_the_mean(
    weights: list[float], num_tokens: int, ends: list[bool], seed: int
) -> None:
    fleet, random = fleet_by(*weights), Random(seed)
    running: list[Endpoint] = []
    for one_ends in ends:
        chosen = take(fleet, key("xyz", num_tokens))
        mean = max(sum(e.tokens_in_flight for e in fleet.taking), len(weights)) / sum(weights)
        bound = (1 + 1 / BETA) * mean
        assert chosen.tokens_in_flight / chosen.weight <= bound * (1 + 1e-9)
        fleet.begin(chosen, num_tokens)
        running.append(chosen)
        if one_ends:
            fleet.end(running.pop(random.randrange(len(running))), num_tokens)


def test_equal_prompts_reach_every_endpoint() -> None:
    fleet = fleet_by(*[1] * 30)
    for _ in range(300):
        fleet.begin(take(fleet, key("xyz")), 100)
    loads = [endpoint.num_in_flight for endpoint in fleet.taking]
    assert min(loads) > 0
    assert max(loads) <= 2 * 10 + 1
