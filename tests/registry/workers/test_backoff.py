from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.workers.backoff import Backoff
from headrace.registry.workers.patience import Patience

PATIENCE = Patience(first_delay=0.5, longest_delay=8.0, settled=60.0, max_failed_loads=3)


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(PATIENCE)
    for longest in (0.5, 1.0, 2.0, 4.0, 8.0, 8.0):
        backoff.note_death(1.0)
        assert longest / 2 <= backoff.delay() <= longest


def test_a_worker_that_served_long_enough_wipes_out_the_past() -> None:
    backoff = Backoff(PATIENCE)
    for _ in range(5):
        backoff.note_death(1.0)
    backoff.note_death(60.0)
    assert backoff.delay() <= 0.5


def test_only_failed_loads_in_a_row_exhaust_it() -> None:
    backoff = Backoff(PATIENCE)
    for _ in range(10):
        backoff.note_failed_load()
        backoff.note_failed_load()
        assert not backoff.is_exhausted
        backoff.note_death(0.0)
    for _ in range(3):
        assert not backoff.is_exhausted
        backoff.note_failed_load()
    assert backoff.is_exhausted


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=2000))
def test_delays_stay_within_bounds_whatever_happens(deaths: list[float | None]) -> None:
    backoff = Backoff(PATIENCE)
    for served in deaths:
        if served is None:
            backoff.note_failed_load()
        else:
            backoff.note_death(served)
        assert 0.25 <= backoff.delay() <= 8.0
