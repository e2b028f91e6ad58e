"""What of a request counts, which way is better, and what makes a mean of it uncertain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from headrace.routing.experiments.plan import MetricName
from headrace.routing.experiments.samples import Values
from headrace.routing.stats.estimate import Estimate

Measured = MetricName | Literal["tokens"]

RELATIVE_EFFECT = 0.1
SMALLEST_EFFECT = 1e-6  # of a microsecond, or nothing of a token


def _relative(mean: float) -> float:
    return RELATIVE_EFFECT * mean + SMALLEST_EFFECT


@dataclass(frozen=True, slots=True)
class Metric:
    """`effect` is the difference that is found soonest, by the mean; any other may be found too."""

    effect: Callable[[float], float]
    is_share: bool = False
    """Every value lies from 0 to 1."""

    def estimate(self, values: Values) -> Estimate:
        mean, count = values.clusters.estimate, values.moments.count
        return of_shares(mean, count) if self.is_share and count else mean


def of_shares(mean: Estimate, count: int) -> Estimate:
    """The mean of so many values from 0 to 1, with what a sample cannot know of itself.

    Shares that were all alike so far have no variance, though the next one may differ: two more
    requests, of 0 and of 1, are taken to have been there (Agresti, Caffo, "Simple and effective
    confidence intervals for proportions and differences of proportions", 2000; here for the
    variance alone). With 1 % failures, one request in ten to a variant, and looks from 50 of its
    requests on, one experiment in three finds a difference that is none without this; with it one
    in 25.
    """
    unseen = (mean.value**2 + (1 - mean.value) ** 2) / count**2
    return mean._replace(variance=mean.variance + unseen)


METRICS: Mapping[Measured, Metric] = MappingProxyType(
    {
        "success": Metric(lambda _: 0.02, is_share=True),
        "latency": Metric(_relative),
        "tokens": Metric(_relative),
        "feedback": Metric(lambda _: 0.05, is_share=True),
    }
)

MORE_IS_BETTER: Mapping[MetricName, bool] = MappingProxyType(
    {"success": True, "latency": False, "feedback": True}
)
"""Of tokens nobody can say it."""
