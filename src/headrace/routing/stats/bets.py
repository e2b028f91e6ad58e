"""Whether one error rate exceeds another by more than a margin: exact, by betting.

Requests are put into blocks as they end: a block closes once it holds both versions, and its result
is X = (candidate's share of failures) - (stable's share), in [-1, 1]. If the true difference is at
most m, a gambler who stakes a fraction f on X > m, capital *= 1 + f (X - m), can not expect to
gain, so the capital ever reaches 1 / alpha with probability alpha at most (Waudby-Smith, Ramdas,
"Estimating means of bounded random variables by betting", 2024). The capital is spread over
fractions that halve from one to the next: near the best one the nearest of them grows at 8 / 9 of
its speed or more.

Exact at any count and any split of traffic. Both sides of a block come from the same time, so error
rates that rise and fall for both versions alike do no harm, also while the split changes; means
over the whole time would mistake it for a difference. Requests are taken for independent: for users
see clusters.py.
"""

from math import exp, log, log1p
from operator import truediv

import msgspec

FRACTIONS = [0.9 / 2**i for i in range(8)]
"""Of the largest stake that can not lose everything."""


class Bets(msgspec.Struct):
    """Two gamblers: one grows rich if the candidate is worse by more than `margin`, one if not."""

    margin: float
    worse: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(FRACTIONS))
    fine: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(FRACTIONS))
    trials: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """Of the open block: stable, candidate."""
    failures: list[int] = msgspec.field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        assert 0 <= self.margin < 1, self.margin

    def add(self, *, candidate: bool, failed: bool) -> None:
        self.trials[candidate] += 1
        self.failures[candidate] += failed
        if all(self.trials):
            stable_rate, candidate_rate = map(truediv, self.failures, self.trials)
            self._settle(candidate_rate - stable_rate - self.margin)

    @property
    def log_worse(self) -> float:
        """Log of the capital; at least log(1 / alpha) says worse by more than the margin."""
        return _log_mean(self.worse)

    @property
    def log_fine(self) -> float:
        """Log of the capital; at least log(1 / alpha) says not worse by the margin or more."""
        return _log_mean(self.fine)

    def _settle(self, excess: float) -> None:
        for i, fraction in enumerate(FRACTIONS):
            self.worse[i] += log1p(fraction / (1 + self.margin) * excess)
            self.fine[i] += log1p(-fraction / (1 - self.margin) * excess)
        self.trials, self.failures = [0, 0], [0, 0]


def _log_mean(logs: list[float]) -> float:
    top = max(logs)
    return top + log(sum(exp(each - top) for each in logs) / len(logs))
