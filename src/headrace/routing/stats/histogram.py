"""Values counted in buckets that grow by 2 % each: days of latencies in at most 1,165 numbers.

A value is known to lie in its bucket, so whoever takes a bound outwards, to the bucket's edge, adds
2 % to it at most, and never loses validity (the buckets of DDSketch: Masson, Rim, Lee 2019).
"""

from math import ceil, inf, log

import msgspec

GROWTH = 1.02
SMALLEST = 1e-5  # seconds; what is less counts as anything from 0 to this
LARGEST = 1e5  # what is more counts as anything above
NUM_BUCKETS = ceil(log(LARGEST / SMALLEST) / log(GROWTH)) + 2


class Histogram(msgspec.Struct):
    """Bucket i > 0 holds SMALLEST * GROWTH ** (i - 1) < value <= SMALLEST * GROWTH ** i."""

    counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        bucket = _bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: "Histogram") -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def edges(self, rank: int) -> tuple[float, float]:
        """Around the value of this rank, the smallest having rank 1; open where there is none."""
        if rank < 1:
            return 0.0, 0.0
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return _lower_edge(bucket), _upper_edge(bucket)
        return inf, inf


def _bucket_of(value: float) -> int:
    if value <= SMALLEST:
        return 0
    bucket = ceil(log(min(value, 2 * LARGEST) / SMALLEST) / log(GROWTH))
    return min(bucket, NUM_BUCKETS - 1)


def _lower_edge(bucket: int) -> float:
    return SMALLEST * GROWTH ** (bucket - 1) if bucket else 0.0


def _upper_edge(bucket: int) -> float:
    return SMALLEST * GROWTH**bucket if bucket < NUM_BUCKETS - 1 else inf
