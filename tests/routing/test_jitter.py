from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.jitter import scattered


@given(st.floats(0.0, 1e6), st.integers())
def test_a_delay_is_scattered_to_both_sides_by_no_more_than_the_share(
    seconds: float, seed: int
) -> None:
    assert 0.8 * seconds * 0.999999 <= scattered(seconds, 0.2, Random(seed))
    assert scattered(seconds, 0.2, Random(seed)) <= 1.2 * seconds * 1.000001


def test_without_jitter_a_delay_is_what_it_is() -> None:
    assert scattered(3.0, 0.0, Random(0)) == 3.0


def test_equal_delays_do_not_stay_equal() -> None:
    random = Random(0)
    assert len({scattered(1.0, 0.2, random) for _ in range(100)}) == 100
