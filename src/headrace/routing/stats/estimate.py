"""A number, and how uncertain it is."""

from typing import NamedTuple


class Estimate(NamedTuple):
    """`variance` is that of `value` itself: its squared standard error, infinite if unknown.

    `third` is the third cumulant of `value`, which tells how far its errors lean to one side.
    """

    value: float
    variance: float
    third: float = 0.0

    def minus(self, other: "Estimate", *, times: float = 1.0) -> "Estimate":
        """Less so many times an independent one."""
        return Estimate(
            self.value - times * other.value,
            self.variance + times**2 * other.variance,
            self.third - times**3 * other.third,
        )
