import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.stats.estimate import Estimate

dice = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6)


def thrown(faces: list[float]) -> Estimate:
    """Mean, variance and third cumulant of one throw of a die."""
    mean, count = math.fsum(faces) / len(faces), len(faces)
    second, third = (math.fsum((face - mean) ** power for face in faces) for power in (2, 3))
    return Estimate(mean, second / count, third / count)


@given(dice, dice, st.floats(-3, 3))
def test_a_difference_of_two_dice_is_a_die_of_all_differences(
    one: list[float], other: list[float], times: float
) -> None:
    both = [face - times * less for face, less in itertools.product(one, other)]
    assert thrown(one).minus(thrown(other), times=times) == pytest.approx(thrown(both), abs=1e-6)


def test_what_is_unknown_stays_unknown() -> None:
    assert Estimate(1.0, math.inf).minus(Estimate(3.0, 2.0)) == (-2.0, math.inf, 0.0)
