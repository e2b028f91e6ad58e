import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets import fleet_of
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet
from headrace.routing.balance.strategy.least_latency import DECAY, expected_wait, observe_latency
from headrace.routing.balance.strategy.strategy import RequestKey

KEY = RequestKey()


def choices(fleet: Fleet, now: float) -> set[Endpoint | None]:
    return {fleet.choose(KEY, now) for _ in range(40)}


def test_the_faster_of_two_is_chosen() -> None:
    fast, slow = Endpoint("fast", latency=0.1), Endpoint("slow", latency=0.3)
    assert choices(fleet_of([fast, slow], "least_latency"), 0.0) == {fast}


def test_requests_in_flight_make_it_slower_before_any_has_ended() -> None:
    fast, slow = Endpoint("fast", latency=0.1), Endpoint("slow", latency=0.3)
    fleet = fleet_of([fast, slow], "least_latency")
    for _ in range(3):
        fleet.begin(fast, 0)
    assert choices(fleet, 0.0) == {slow}


def test_who_has_never_answered_gets_one_request_and_then_the_others() -> None:
    new, known = Endpoint("new"), Endpoint("known", latency=5.0)
    fleet = fleet_of([new, known], "least_latency")
    assert choices(fleet, 0.0) == {new}
    fleet.begin(new, 0)
    assert choices(fleet, 0.0) == {known}


def test_an_endpoint_left_alone_for_long_is_tried_again_by_one_request() -> None:
    fast, slow = Endpoint("fast", latency=0.1), Endpoint("slow", latency=1.0)
    fleet = fleet_of([fast, slow], "least_latency")
    observe_latency(fast, 0.1, 10 * DECAY)
    assert choices(fleet, 10 * DECAY) == {slow}
    fleet.begin(slow, 0)
    assert choices(fleet, 10 * DECAY) == {fast}


def test_the_older_the_average_the_more_a_measurement_counts() -> None:
    soon, late = Endpoint("soon"), Endpoint("late")
    for endpoint in soon, late:
        observe_latency(endpoint, 1.0, 0.0)
    observe_latency(soon, 2.0, 0.01 * DECAY)
    observe_latency(late, 2.0, 5 * DECAY)
    assert soon.latency == pytest.approx(1.01, abs=0.001)
    assert late.latency == pytest.approx(1.99, abs=0.01)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 60)), min_size=1),
    st.integers(0, 10),
)
def test_the_average_stays_between_what_was_measured(
    measured: list[tuple[float, float]], num_in_flight: int
) -> None:
    endpoint, now = Endpoint("e"), 0.0
    for gap, seconds in measured:
        now += gap
        observe_latency(endpoint, seconds, now)
    low, high = min(s for _, s in measured), max(s for _, s in measured)
    assert endpoint.latency is not None
    assert low - 1e-9 <= endpoint.latency <= high + 1e-9
    endpoint.num_in_flight = num_in_flight
    assert expected_wait(endpoint, now) == pytest.approx(endpoint.latency * (num_in_flight + 1))
