"""Evidence against a probability, from a count of successes: exact at every sample size at once.

A mixture over Beta(a, b) of the likelihoods of k successes in n, over the likelihood of p, is a
martingale under p that starts at 1 (Ville 1939; Robbins 1970): it ever reaches 1 / alpha with
probability alpha at most. It is so for any n, so nothing here is an approximation.
"""

from math import lgamma, log

PRIOR = 0.5  # of both sides: loses least over all p (Krichevsky, Trofimov 1981)


def log_ratio(successes: int, trials: int, p: float, a: float = PRIOR, b: float = PRIOR) -> float:
    """Of the mixture's likelihood over that of 0 < p < 1."""
    failures = trials - successes
    mixture = _log_beta(a + successes, b + failures) - _log_beta(a, b)
    return mixture - successes * log(p) - failures * log(1 - p)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
