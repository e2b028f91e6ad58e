"""Counts who uses a version, and when somebody last did."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Leases:
    """Calls `on_unused` when the last one ends."""

    def __init__(self, on_unused: Callable[[], None]) -> None:
        self.count = 0
        self.last_used = time.monotonic()
        self._on_unused = on_unused
        self._unused = asyncio.Event()
        self._unused.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.count += 1
        self._unused.clear()
        try:
            yield
        finally:
            self.count -= 1
            self.last_used = time.monotonic()
            if self.count == 0:
                self._unused.set()
                self._on_unused()

    async def unused(self) -> None:
        """Wait until there is none."""
        while self.count:  # somebody may have come since it was told
            await self._unused.wait()
