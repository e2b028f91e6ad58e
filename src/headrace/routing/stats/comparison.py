"""One value of both versions' requests, and how far the candidate's is over what is tolerated."""

from enum import StrEnum

import msgspec

from headrace.routing.stats import mixture
from headrace.routing.stats.clusters import Clusters
from headrace.routing.stats.estimate import Estimate

MIN_CLUSTERS = 20  # of users, on each side: a variance over fewer is hardly known
BETTER_TAKES = 10
"""Times the samples: a version may look good only because its worst is yet to come."""


class Verdict(StrEnum):
    WORSE = "worse"
    FINE = "fine"
    UNKNOWN = "unknown"


class Reading(msgspec.Struct, frozen=True):
    """A verdict with its numbers.

    `excess` is how far the candidate is over what is tolerated, with its lowest and highest value;
    these are infinite (null in JSON) while a side has no two users.
    """

    verdict: Verdict
    candidate: float
    stable: float
    excess: float
    lowest_excess: float
    highest_excess: float
    num_candidate: int
    num_stable: int


class Comparison(msgspec.Struct):
    """Both means over requests, by user.

    No verdict before each side has `min_samples`, and the one that it finds better ten times those.
    """

    min_samples: int
    stable: Clusters = msgspec.field(default_factory=Clusters)
    candidate: Clusters = msgspec.field(default_factory=Clusters)

    def add(self, user: str, value: float, *, candidate: bool) -> None:
        (self.candidate if candidate else self.stable).add(user, value)

    @property
    def means(self) -> tuple[Estimate, Estimate]:
        """Of the candidate and of the stable version."""
        return self.candidate.estimate, self.stable.estimate

    def read(
        self, means: tuple[Estimate, Estimate], excess: Estimate, effect: float, alpha: float
    ) -> Reading:
        """`excess` is made of the means by who knows what is tolerated."""
        candidate, stable = means
        lowest = mixture.lower_bound(excess, effect, alpha)
        highest = mixture.upper_bound(excess, effect, alpha)
        return Reading(
            verdict=self._verdict(lowest, highest),
            candidate=candidate.value,
            stable=stable.value,
            excess=excess.value,
            lowest_excess=lowest,
            highest_excess=highest,
            num_candidate=self.candidate.num_samples,
            num_stable=self.stable.num_samples,
        )

    def _verdict(self, lowest: float, highest: float) -> Verdict:
        if lowest > 0 and self._are_enough(better=self.stable, worse=self.candidate):
            return Verdict.WORSE
        if highest < 0 and self._are_enough(better=self.candidate, worse=self.stable):
            return Verdict.FINE
        return Verdict.UNKNOWN

    def _are_enough(self, *, better: Clusters, worse: Clusters) -> bool:
        return (
            min(better.num_clusters, worse.num_clusters) >= MIN_CLUSTERS
            and worse.num_samples >= self.min_samples
            and better.num_samples >= self.min_samples * BETTER_TAKES
        )
