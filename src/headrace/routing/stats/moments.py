"""Count, mean, variance and skew of a stream in four numbers (Welford 1962; Pébay 2008).

For independent observations. Requests of one user are not: see clusters.py.
"""

import math

import msgspec

from headrace.routing.stats.estimate import Estimate


class Moments(msgspec.Struct):
    """`squares` and `cubes` are sums of those powers of the distances from the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    cubes: float = 0.0

    def add(self, value: float) -> None:
        self.merge(Moments(1, value))

    def merge(self, other: "Moments") -> None:
        """Become what one stream of both would have been."""
        count = self.count + other.count
        if not count:
            return
        apart = other.mean - self.mean
        weight = self.count * other.count / count
        unequal = (self.count - other.count) / count
        crossed = (self.count * other.squares - other.count * self.squares) / count
        self.cubes += other.cubes + apart**3 * weight * unequal + 3 * apart * crossed
        self.squares += other.squares + apart**2 * weight
        self.mean += apart * other.count / count
        self.count = count

    @property
    def variance(self) -> float:
        """Of one observation, unbiased; infinite before the second."""
        return self.squares / (self.count - 1) if self.count > 1 else math.inf

    @property
    def estimate(self) -> Estimate:
        """The mean, with the variance and third cumulant of the mean."""
        count = max(1, self.count)
        return Estimate(self.mean, self.variance / count, self.cubes / count**3)
