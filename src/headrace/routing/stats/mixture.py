"""Tests and intervals for an estimate that is watched: they hold at every sample size at once.

The estimate of a mean, or of a difference of means, is d with the variance V of d itself; as data
come in, d / V moves like a Brownian motion at time 1 / V. Mixing the likelihood ratio against the
value 0 over values distributed N(0, t) gives

    L = sqrt(V / (V + t)) * exp(t d^2 / (2 V (V + t))),

a martingale under 0 that starts at 1, so by Ville's inequality it ever reaches 1 / alpha with
probability alpha at most: the mixture sequential probability ratio test (Robbins 1970; Johari,
Koomen, Pekelis, Walsh, "Always valid inference", 2022). All values that it does not reject are a
confidence sequence; since V is estimated it is asymptotic (Waudby-Smith, Arbour, Sinha, Kennedy,
Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", 2024; their rho^2
is t over the variance of one observation), so a caller sets a floor on samples: 200 of each
group do where groups are equal, and 500 of the smaller one where they are not. One-sided bounds
mix over |N(0, t)| (there, and Howard, Ramdas, McAuliffe, Sekhon 2021): the same for half of alpha.

Where errors lean to one side, d is z standard errors off too often on the other, since few large
values are yet to come and the variance with them. So a bound at z goes to z + s (2 z^2 + 1) / 6 on
that side, s being the skewness of d: the first term of the expansion for a studentised mean
(Hall, "The bootstrap and Edgeworth expansion", 1992). It vanishes as samples grow.

`effect` is sqrt(t): any above 0 is valid, and a difference of about this size is found soonest.
"""

from math import copysign, exp, log, sqrt

from headrace.routing.stats.estimate import Estimate

TINY = 1e-12
"""Of t, added to V: constant observations have no variance, and a division by it no result."""

DECISIVE = -2 * log(0.05) + log(1 - 2 * log(0.05))
"""t / V where the interval of alpha 0.05 is narrowest for its V, nearly."""


def p_value(estimate: Estimate, effect: float, so_far: float = 1.0) -> float:
    """Always valid, for the value 0, two-sided. `so_far` is the smallest of earlier looks."""
    return min(so_far, exp(min(0.0, -_log_likelihood_ratio(estimate, effect))))


def interval(estimate: Estimate, effect: float, alpha: float) -> tuple[float, float]:
    """Holds the true value at all times, with probability 1 - alpha; p_value < alpha without 0."""
    odds = _growth(estimate, effect) / alpha
    below = _spread(estimate, effect, odds, -estimate.third)
    above = _spread(estimate, effect, odds, estimate.third)
    return estimate.value - below, estimate.value + above


def lower_bound(estimate: Estimate, effect: float, alpha: float) -> float:
    """Never above the true value, with probability 1 - alpha."""
    odds = 1 + _growth(estimate, effect) / (2 * alpha)
    return estimate.value - _spread(estimate, effect, odds, -estimate.third)


def upper_bound(estimate: Estimate, effect: float, alpha: float) -> float:
    """Never under the true value, with probability 1 - alpha."""
    odds = 1 + _growth(estimate, effect) / (2 * alpha)
    return estimate.value + _spread(estimate, effect, odds, estimate.third)


def effect_for(num_samples: int, deviation: float) -> float:
    """The effect that makes intervals narrowest after so many samples of such a deviation.

    For a difference of two groups of n1 and n2, n1 * n2 / (n1 + n2) samples count.
    """
    assert deviation > 0, "what never varies has no effect of its own; name one"
    return deviation * sqrt(DECISIVE / num_samples)


def _log_likelihood_ratio(estimate: Estimate, effect: float) -> float:
    t = effect**2
    v = _variance(estimate, effect)
    lean = _positive(copysign(1.0, -estimate.value) * estimate.third) / v**1.5
    z = _without_lean(abs(estimate.value) / sqrt(v), lean)
    return z**2 * t / (2 * (v + t)) - log(1 + t / v) / 2


def _without_lean(z: float, lean: float) -> float:
    """The z that _spread would lean to this one: solves x + lean (2 x^2 + 1) / 6 = z."""
    rest = _positive(z - lean / 6)
    return 2 * rest / (1 + sqrt(1 + 4 / 3 * lean * rest))


def _growth(estimate: Estimate, effect: float) -> float:
    return sqrt(1 + effect**2 / _variance(estimate, effect))


def _spread(estimate: Estimate, effect: float, odds: float, third: float) -> float:
    """Of a bound from the estimate: z sqrt(v), and sqrt(v) s (2 z^2 + 1) / 6 where it leans."""
    t = effect**2
    v = _variance(estimate, effect)
    lean = _positive(third) * (4 * log(odds) * (1 / t + 1 / v) + 1 / v) / 6
    return sqrt(2 * v * (v / t + 1) * log(odds)) + lean


def _variance(estimate: Estimate, effect: float) -> float:
    return estimate.variance + TINY * effect**2


def _positive(number: float) -> float:
    return (number + abs(number)) / 2
