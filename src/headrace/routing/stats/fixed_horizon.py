"""Tests for who plans a sample size and looks once. Looked at more often they err more often."""

from collections.abc import Sequence
from math import erfc, sqrt

from scipy.special import stdtr

from headrace.routing.stats.moments import Moments
from headrace.routing.stats.proportions import Rate


def two_proportion_z_test(one: Rate, other: Rate) -> float:
    """Two-sided p-value for equal rates, with the pooled variance; 1 where nothing differs."""
    pooled = (one.failures + other.failures) / max(1, one.trials + other.trials)
    if not (one.trials and other.trials and 0 < pooled < 1):
        return 1.0
    error = sqrt(pooled * (1 - pooled) * (1 / one.trials + 1 / other.trials))
    z = (one.failures / one.trials - other.failures / other.trials) / error
    return erfc(abs(z) / sqrt(2))


def welch_t_test(one: Moments, other: Moments) -> float:
    """Two-sided p-value for equal means, variances apart; 1 before each has two observations.

    Degrees of freedom after Satterthwaite 1946. Constant and different groups give 0.
    """
    if min(one.count, other.count) <= 1:
        return 1.0
    first, second = one.variance / one.count, other.variance / other.count
    difference = abs(one.mean - other.mean)
    both = first + second
    if not both:
        return 0.0 if difference else 1.0
    freedom = 1 / ((first / both) ** 2 / (one.count - 1) + (second / both) ** 2 / (other.count - 1))
    return float(2 * stdtr(freedom, -difference / sqrt(both)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted, in their order: those at or under alpha hold together (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted
