"""Intervals for a quantile, such as the 99th percentile of latency, valid at every look.

How many of n values lie at or below the true quantile of q is binomial with probability q, whatever
the values' distribution; so ranks whose counts beta_binomial.py does not reject for p = q hold it
(Howard, Ramdas, "Sequential estimation of quantiles", 2022, theorem 1, with this mixture as the
boundary). Ties, and the buckets of a histogram, only widen it. Their bound for all quantiles at
once, 0.85 sqrt((log log(e n) + 0.8 log(1612 / alpha)) / n), is no use here: at alpha 0.05 it says
nothing of the 99th percentile before n = 80,000, this one from about 800 on.

For independent requests: between users that differ much it is too narrow.
"""

from math import ceil, log

from headrace.routing.stats.beta_binomial import log_ratio
from headrace.routing.stats.histogram import Histogram

STRENGTH = 600
"""Of the prior Beta(q, 1 - q) * STRENGTH: narrowest at about 5,000 values."""


def estimate(histogram: Histogram, q: float) -> float:
    """The upper edge of the bucket that holds it, so at most 2 % too high; 0 without values."""
    return histogram.edges(ceil(q * histogram.count))[1]


def interval(histogram: Histogram, q: float, alpha: float) -> tuple[float, float]:
    """Holds the true quantile at all times, with probability 1 - alpha; 0 and infinity are ends."""
    low, high = rank_interval(histogram.count, q, alpha)
    return histogram.edges(low)[0], histogram.edges(high + 1)[1]


def rank_interval(count: int, q: float, alpha: float) -> tuple[int, int]:
    """How many of so many values may lie at or below the quantile, at least and at most."""
    centre = round(q * count)
    low = _last_kept(centre, 0, count, q, alpha)
    high = _last_kept(centre, count, count, q, alpha)
    return low, high


def _last_kept(kept: int, end: int, count: int, q: float, alpha: float) -> int:
    """The last rank that is not rejected on the way from one that is kept towards the end."""
    if not _is_rejected(end, count, q, alpha):
        return end
    rejected = end
    while abs(rejected - kept) > 1:
        middle = (rejected + kept) // 2
        if _is_rejected(middle, count, q, alpha):
            rejected = middle
        else:
            kept = middle
    return kept


def _is_rejected(at_or_below: int, count: int, q: float, alpha: float) -> bool:
    ratio = log_ratio(at_or_below, count, q, STRENGTH * q, STRENGTH * (1 - q))
    return ratio >= -log(alpha)
