"""The straight line through measurements: how much they grow a step, and how much they jump."""

from collections.abc import Sequence

import msgspec
import numpy as np


class Trend(msgspec.Struct, frozen=True):
    """Least squares: growth a step, its standard error, and the deviation of points from the line.

    The error takes deviations for independent; where neighbours are alike, it is too small.
    """

    slope: float
    error: float
    noise: float


def trend(values: Sequence[float]) -> Trend | None:
    """None with fewer than three values, which tell nothing of their noise."""
    if len(values) < 3:
        return None
    steps = np.arange(len(values))
    slope, offset = np.polyfit(steps, np.asarray(values, dtype=float), 1)
    rest = np.asarray(values) - (slope * steps + offset)
    variance = float(rest @ rest) / (len(values) - 2)
    spread = float(np.sum((steps - steps.mean()) ** 2))
    return Trend(float(slope), (variance / spread) ** 0.5, variance**0.5)
