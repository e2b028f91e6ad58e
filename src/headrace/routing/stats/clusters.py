"""Means over requests when users are the unit of randomisation. Remembers clusters, not users.

Requests of one user are correlated, so the variance is taken over users: with totals S_u and counts
N_u of independent users, the mean R = sum S / sum N has by the delta method the variance sum (S_u -
R N_u)^2 / (sum N)^2, and the like with cubes (Deng, Knoblich, Lu, "Applying the delta method in
metric analytics", KDD 2018).

Users are unbounded, so each is hashed into one of a fixed number of clusters, and the sum goes over
clusters. That is still valid: a hash that knows nothing of outcomes puts whole users into clusters,
so residuals e_k = sum of (S_u - R N_u) over users of cluster k are sums over disjoint sets of
independent users; E e_k^2 is the sum of the users' variances, and both sums have one expectation.
What is lost is precision of the variance: its degrees of freedom are at most the clusters. With
fewer users than clusters hardly any two share one.
"""

import math
from hashlib import blake2b

import msgspec

from headrace.routing.stats.estimate import Estimate

NUM_CLUSTERS = 1024  # the variance's own relative error is then about sqrt(2 / 1024), 4 %


class Clusters(msgspec.Struct):
    """The mean of a value over requests, and its variance over users, in constant memory."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * NUM_CLUSTERS)
    totals: list[float] = msgspec.field(default_factory=lambda: [0.0] * NUM_CLUSTERS)

    def add(self, user: str, value: float) -> None:
        """`user` is a request's own id where nobody is known: then requests are independent."""
        cluster = cluster_of(user)
        self.counts[cluster] += 1
        self.totals[cluster] += value

    def merge(self, other: "Clusters") -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.totals = [a + b for a, b in zip(self.totals, other.totals, strict=True)]

    @property
    def num_samples(self) -> int:
        return sum(self.counts)

    @property
    def num_clusters(self) -> int:
        """How many hold a user; nearly the number of users while those are few."""
        return sum(count > 0 for count in self.counts)

    @property
    def estimate(self) -> Estimate:
        """The mean over requests; its variance is infinite before there are two clusters."""
        count, clusters = self.num_samples, self.num_clusters
        if not count:
            return Estimate(0.0, math.inf)
        mean = math.fsum(self.totals) / count
        if clusters == 1:
            return Estimate(mean, math.inf)
        residuals = [
            total - mean * of_cluster
            for total, of_cluster in zip(self.totals, self.counts, strict=True)
        ]
        squares = math.fsum(residual**2 for residual in residuals) * clusters / (clusters - 1)
        cubes = math.fsum(residual**3 for residual in residuals)
        return Estimate(mean, squares / count**2, cubes / count**3)


def cluster_of(user: str) -> int:
    """The same after a restart, and independent of whatever hash gave the user a version."""
    digest = blake2b(user.encode(), digest_size=8, person=b"clusters").digest()
    return int.from_bytes(digest) % NUM_CLUSTERS
