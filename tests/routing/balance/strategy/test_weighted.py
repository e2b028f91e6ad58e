from collections import Counter
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey

KEY = RequestKey()


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=20),
    st.integers(1, 500),
)
def test_turns_stay_in_proportion_to_within_one_each(weights: list[float], num: int) -> None:
    endpoints = [Endpoint(f"e{n}", weight) for n, weight in enumerate(weights)]
    fleet = fleet_of(endpoints, "weighted")
    turns = Counter(fleet.choose(KEY, 0.0) for _ in range(num))
    for a, b in combinations(endpoints, 2):
        apart = abs(turns[a] / a.weight - turns[b] / b.weight)
        assert apart <= (1 / a.weight + 1 / b.weight) * (1 + 1e-9)


def test_a_heavy_endpoint_s_turns_are_spread_between_the_others() -> None:
    endpoints = [Endpoint("heavy", 5), Endpoint("b"), Endpoint("c")]
    fleet = fleet_of(endpoints, "weighted")
    names = [chosen.name for _ in range(70) if (chosen := fleet.choose(KEY, 0.0))]
    others = [place for place, name in enumerate(names) if name != "heavy"]
    assert len(others) == 20
    assert max(b - a for a, b in pairwise(others)) <= 5


def test_a_tried_endpoint_keeps_its_turn() -> None:
    a, b = Endpoint("a"), Endpoint("b")
    fleet = fleet_of([a, b], "weighted")
    first = fleet.choose(KEY, 0.0)
    assert first is not None
    other = b if first is a else a
    assert fleet.choose(KEY, 0.0, {other}) is first
    assert [fleet.choose(KEY, 0.0) for _ in range(2)] == [other, other]


def test_an_endpoint_that_was_away_does_not_catch_up() -> None:
    a, b = Endpoint("a"), Endpoint("b")
    fleet = fleet_of([a, b], "weighted")
    fleet.place(b, 0.0)
    for _ in range(100):
        fleet.choose(KEY, 0.0)
    fleet.place(b, 1.0)
    turns = Counter(fleet.choose(KEY, 1.0) for _ in range(10))
    assert abs(turns[a] - turns[b]) <= 2


def test_the_same_weights_set_again_disturb_no_turns() -> None:
    a, b = Endpoint("a", 9), Endpoint("b", 1)
    fleet = fleet_of([a, b], "weighted")
    turns: Counter[Endpoint | None] = Counter()
    for _ in range(1000):
        turns[fleet.choose(KEY, 0.0)] += 1
        fleet.place(a, 9.0)
        fleet.place(b, 1.0)
    assert turns[b] == 100
