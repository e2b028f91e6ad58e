"""Whether a candidate's own error rate is over a limit, whatever the stable version's is.

As for two rates, two tests must agree: the exact one of proportions.py takes requests for
independent, the bounds over users do not but need counts; both together err no more often than
either.
"""

from dataclasses import dataclass, field

from headrace.routing.stats import mixture, proportions
from headrace.routing.stats.clusters import Clusters
from headrace.routing.stats.comparison import MIN_CLUSTERS, Reading, Verdict
from headrace.routing.stats.estimate import Estimate
from headrace.routing.stats.guard import SMALLEST_ERROR_EFFECT
from headrace.routing.stats.proportions import Rate


@dataclass(slots=True)
class RateLimit:
    """May be read at any time; errs with probability alpha at most, in either direction."""

    max_rate: float
    users: Clusters = field(default_factory=Clusters)
    num_failures: int = 0

    def add(self, user: str, *, failed: bool) -> None:
        self.users.add(user, float(failed))
        self.num_failures += failed

    def read(self, alpha: float) -> Reading:
        mean, count = self.users.estimate, self.users.num_samples
        low, high = proportions.interval(Rate(self.num_failures, count), alpha)
        return Reading(
            verdict=self._verdict(low, high, mean, alpha),
            candidate=mean.value,
            stable=0.0,
            excess=mean.value - self.max_rate,
            lowest_excess=low - self.max_rate,
            highest_excess=high - self.max_rate,
            num_candidate=count,
            num_stable=0,
        )

    def _verdict(self, low: float, high: float, mean: Estimate, alpha: float) -> Verdict:
        excess = mean.minus(Estimate(self.max_rate, 0.0))
        effect = max(self.max_rate, SMALLEST_ERROR_EFFECT)
        if self.users.num_clusters < MIN_CLUSTERS:
            return Verdict.UNKNOWN
        if low > self.max_rate and mixture.lower_bound(excess, effect, alpha) > 0:
            return Verdict.WORSE
        if high < self.max_rate and mixture.upper_bound(excess, effect, alpha) < 0:
            return Verdict.FINE
        return Verdict.UNKNOWN
