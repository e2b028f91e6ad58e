"""What is known of one variant's requests: counts and sums, in constant memory."""

import msgspec

from headrace.routing.observation import Observation
from headrace.routing.stats.clusters import Clusters
from headrace.routing.stats.moments import Moments


class Values(msgspec.Struct):
    """One number of each request: by user for looks at any time, by request for a single look."""

    clusters: Clusters = msgspec.field(default_factory=Clusters)
    moments: Moments = msgspec.field(default_factory=Moments)

    def add(self, user: str, value: float) -> None:
        self.clusters.add(user, value)
        self.moments.add(value)

    def copy(self) -> "Values":
        """One that stays as it is; a fraction of what a deep copy takes."""
        clusters = Clusters(self.clusters.counts[:], self.clusters.totals[:])
        return Values(clusters, msgspec.structs.replace(self.moments))


class Samples(msgspec.Struct):
    """Of one variant. `num_diverted` requests are failures: they went elsewhere, as it was away."""

    num_requests: int = 0
    num_diverted: int = 0
    success: Values = msgspec.field(default_factory=Values)
    latency: Values = msgspec.field(default_factory=Values)
    tokens: Values = msgspec.field(default_factory=Values)
    feedback: Values = msgspec.field(default_factory=Values)

    @property
    def share_diverted(self) -> float:
        """Of all that it was meant to answer."""
        return self.num_diverted / max(self.num_requests + self.num_diverted, 1)

    def divert(self, user: str) -> None:
        # Otherwise a version that is dead half of the time would be judged by the other half.
        self.num_diverted += 1
        self.success.add(user, 0.0)

    def add(self, seen: Observation) -> None:
        self.num_requests += 1
        self.success.add(seen.user, float(not seen.failed))
        if seen.failed:  # how fast it failed, and with how many tokens, is no merit
            return
        self.latency.add(seen.user, seen.latency)
        if seen.num_tokens is not None:
            self.tokens.add(seen.user, float(seen.num_tokens))

    def add_score(self, user: str, score: float) -> None:
        self.feedback.add(user, score)

    def copy(self) -> "Samples":
        return Samples(
            num_requests=self.num_requests,
            num_diverted=self.num_diverted,
            success=self.success.copy(),
            latency=self.latency.copy(),
            tokens=self.tokens.copy(),
            feedback=self.feedback.copy(),
        )
