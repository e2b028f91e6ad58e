from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.health.sliding import NUM_SLOTS, SlidingCount


def test_an_event_counts_until_its_slot_has_left_the_window() -> None:
    count = SlidingCount(10.0)
    count.add(0.5)
    count.add(9.9)
    assert count.total(9.9) == 2
    assert count.total(10.0) == 1
    assert count.total(18.9) == 1
    assert count.total(19.0) == 0


def test_clearing_forgets_everything() -> None:
    count = SlidingCount(10.0)
    count.add(1.0)
    count.clear()
    assert count.total(1.0) == 0


@given(st.lists(st.floats(0.0, 30.0), max_size=200), st.floats(0.0, 60.0))
def test_it_covers_nine_tenths_of_the_window_to_all_of_it(steps: list[float], last: float) -> None:
    count = SlidingCount(10.0)
    now, times = 0.0, []
    for step in steps:
        now += step
        times.append(now)
        count.add(now)
    now += last
    at_least = sum(time > now - 8.999 for time in times)
    at_most = sum(time > now - 10.001 for time in times)
    assert at_least <= count.total(now) <= at_most
    assert len(count._slots) <= NUM_SLOTS
