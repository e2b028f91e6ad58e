"""Intervals for a rate and for two rates, exact from the first sample on and valid at every look.

For independent requests. An interval is the set of rates that beta_binomial.py does not reject;
those of a difference and a ratio combine the two at half of alpha each (a union bound), which is
exact as well and wider than need be. A guard's decision takes the sharper test in bets.py.
"""

from collections.abc import Callable
from math import inf, log
from typing import NamedTuple

from headrace.routing.stats.beta_binomial import log_ratio

HALVINGS = 50  # of an interval within [0, 1]; ends move outwards by 1e-15 at most


class Rate(NamedTuple):
    failures: int
    trials: int


def interval(rate: Rate, alpha: float) -> tuple[float, float]:
    """Holds the true rate at all times, with probability 1 - alpha."""
    if not rate.trials:
        return 0.0, 1.0

    def rejected(p: float) -> bool:
        return log_ratio(rate.failures, rate.trials, p) >= -log(alpha)

    seen = rate.failures / rate.trials
    low = _outer_edge(0.0, seen, rejected) if rate.failures else 0.0
    high = _outer_edge(1.0, seen, rejected) if rate.failures < rate.trials else 1.0
    return low, high


def difference_interval(one: Rate, other: Rate, alpha: float) -> tuple[float, float]:
    """Of one - other."""
    low, high = interval(one, alpha / 2)
    other_low, other_high = interval(other, alpha / 2)
    return low - other_high, high - other_low


def ratio_interval(one: Rate, other: Rate, alpha: float) -> tuple[float, float]:
    """Of one / other; infinite above while the other's rate may be 0."""
    low, high = interval(one, alpha / 2)
    other_low, other_high = interval(other, alpha / 2)
    return low / other_high, high / other_low if other_low else inf


def _outer_edge(outside: float, inside: float, rejected: Callable[[float], bool]) -> float:
    """The last rejected value on the way in; the ratio only falls towards what was seen."""
    for _ in range(HALVINGS):
        middle = (outside + inside) / 2
        if rejected(middle):
            outside = middle
        else:
            inside = middle
    return outside
