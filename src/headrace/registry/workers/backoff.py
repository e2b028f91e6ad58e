"""When to restart a worker that ended, and when to give up. Knows no clock and no process."""

import random

from headrace.registry.workers.patience import Patience


class Backoff:
    """Counts failures in a row; a worker that served long enough wipes them out."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._num_failures = 0
        self._num_failed_loads = 0

    @property
    def num_failed_loads(self) -> int:
        """Loads in a row that did not end in a ready model."""
        return self._num_failed_loads

    @property
    def is_exhausted(self) -> bool:
        return self._num_failed_loads >= self._patience.max_failed_loads

    def note_failed_load(self) -> None:
        self._num_failures += 1
        self._num_failed_loads += 1

    def note_death(self, seconds_served: float) -> None:
        """A worker that had been ready has ended."""
        self._num_failed_loads = 0
        if seconds_served >= self._patience.settled:
            self._num_failures = 0
        self._num_failures += 1

    def delay(self) -> float:
        """Seconds to wait; jitter keeps several workers from restarting in step."""
        doublings = min(self._num_failures - 1, 32)
        longest = min(self._patience.longest_delay, self._patience.first_delay * 2.0**doublings)
        return longest * random.uniform(0.5, 1.0)
