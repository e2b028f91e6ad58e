"""Whether a candidate is worse than the stable version by more than is tolerated.

A guard may be asked after every request. While the truth is at the limit or under it, it ever says
worse with probability alpha at most; while it is at the limit or over it, it ever says fine with
probability alpha at most; otherwise it says unknown. For latencies this is a limit that holds well
from the floors of comparison.py on. One guard compares at one split of traffic: across splits, a
change in time would look like one between versions.

State is plain and bounded, so `msgspec.json` keeps it over a restart.
"""

from math import log

import msgspec

from headrace.routing.stats.bets import Bets
from headrace.routing.stats.comparison import Comparison, Reading, Verdict
from headrace.routing.stats.estimate import Estimate

SMALLEST_ERROR_EFFECT = 0.01
SMALLEST_LATENCY_EFFECT = 0.1  # of the stable version's mean
MICROSECOND = 1e-6


class ErrorGuard(msgspec.Struct):
    """Of error rates: the candidate's may exceed the stable one's by `margin`, absolutely.

    Two tests must agree. Bets are exact at small counts but take requests for independent; bounds
    from the variance over users know that they are not, but need counts. If one of them is valid,
    so are both together.
    """

    bets: Bets
    compared: Comparison
    alpha: float

    @classmethod
    def begin(cls, margin: float, *, alpha: float = 0.05, min_samples: int = 50) -> "ErrorGuard":
        return cls(Bets(margin), Comparison(min_samples), alpha)

    def add(self, user: str, *, candidate: bool, failed: bool) -> None:
        """`user` is a request's own id where nobody is known."""
        self.bets.add(candidate=candidate, failed=failed)
        self.compared.add(user, float(failed), candidate=candidate)

    def read(self) -> Reading:
        margin = self.bets.margin
        candidate, stable = means = self.compared.means
        excess = candidate.minus(stable).minus(Estimate(margin, 0.0))
        effect = max(margin, SMALLEST_ERROR_EFFECT)
        reading = self.compared.read(means, excess, effect, self.alpha)
        if reading.verdict in self._won_bets:
            return reading
        return msgspec.structs.replace(reading, verdict=Verdict.UNKNOWN)

    @property
    def _won_bets(self) -> list[Verdict]:
        capitals = {Verdict.WORSE: self.bets.log_worse, Verdict.FINE: self.bets.log_fine}
        return [verdict for verdict, capital in capitals.items() if capital >= -log(self.alpha)]


class LatencyGuard(msgspec.Struct):
    """Of mean latencies: the candidate's may be `max_ratio` times the stable one's.

    With means c and s, c / s > r is c - r s > 0, whose estimate has the variance V_c + r^2 V_s: a
    difference of two means as any other, without the trouble of dividing by an uncertain number.
    """

    max_ratio: float
    compared: Comparison
    alpha: float

    @classmethod
    def begin(
        cls, max_ratio: float, *, alpha: float = 0.05, min_samples: int = 50
    ) -> "LatencyGuard":
        return cls(max_ratio, Comparison(min_samples), alpha)

    def add(self, user: str, seconds: float, *, candidate: bool) -> None:
        """`user` is a request's own id where nobody is known."""
        self.compared.add(user, seconds, candidate=candidate)

    def read(self) -> Reading:
        candidate, stable = means = self.compared.means
        excess = candidate.minus(stable, times=self.max_ratio)
        # not the constant that theory asks for, but settled before there is a verdict
        effect = max(self.max_ratio - 1, SMALLEST_LATENCY_EFFECT) * stable.value + MICROSECOND
        return self.compared.read(means, excess, effect, self.alpha)


class HardLimit(msgspec.Struct):
    """Failures that need no statistics: more than half of the last 20 requests, say."""

    max_rate: float = 0.5
    num_requests: int = 20
    last: list[bool] = []

    def add(self, *, failed: bool) -> None:
        self.last.append(failed)
        del self.last[: -self.num_requests]

    @property
    def is_broken(self) -> bool:
        """Never before there were so many requests."""
        is_full = len(self.last) == self.num_requests
        return is_full and sum(self.last) > self.max_rate * self.num_requests
