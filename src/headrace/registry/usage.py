"""Counts who uses something, so that it can end when nobody does any more."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Usage:
    """Calls `on_unused` each time the last user has left."""

    def __init__(self, on_unused: Callable[[], None]) -> None:
        self._on_unused = on_unused
        self._count = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self.last_used = time.monotonic()

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._count += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._count -= 1
            self.last_used = time.monotonic()
            if self._count == 0:
                self._unused.set()
                self._on_unused()

    async def unused(self) -> None:
        """Wait until nobody uses it."""
        while self._count:  # somebody may have come since it was told
            await self._unused.wait()
