"""Scatters delays, so that what began at one time does not come back at one time."""

from random import Random


def scattered(seconds: float, jitter: float, random: Random) -> float:
    """Somewhere within a share of `jitter` to either side of `seconds`."""
    return seconds * random.uniform(1 - jitter, 1 + jitter)
