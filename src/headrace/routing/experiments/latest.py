"""The newest reading of one experiment, for all who ask. Knows no samples."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf

from headrace.routing.experiments.state import Reading


class Latest:
    """One look at a time, however many ask: they queue here, and the thread has one of theirs."""

    def __init__(self, fresh_for: float) -> None:
        self._fresh_for = fresh_for
        self._lock = asyncio.Lock()
        self._reading: Reading | None = None
        self._taken_at = -inf

    async def get(self, look: Callable[[], Awaitable[Reading]]) -> Reading:
        """One that is at most `fresh_for` seconds old."""
        async with self._lock:
            if self._reading is None or time.monotonic() - self._taken_at >= self._fresh_for:
                self._reading = await look()
                self._taken_at = time.monotonic()
            return self._reading
