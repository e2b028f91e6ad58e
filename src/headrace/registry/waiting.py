"""Waiting for several things, and by several callers: bounded, in time and in number."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from headrace.errors import DeadlineError, QueueFullError


async def all_of(waits: Iterable[Awaitable[object]]) -> None:
    """Wait for all, or raise what the first to fail raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        for done in asyncio.as_completed(tasks):
            await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def until(deadline: float | None, late: str) -> AsyncIterator[None]:
    """DeadlineError, which says `late`, when this lasts past the monotonic `deadline`."""
    delay = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        async with asyncio.timeout(delay) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineError(late) from None


class WaitingRoom:
    """Where requests wait for something that ends for all of them at once."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self.called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when those who wait now are to look whether they still want to."""

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    def call(self) -> None:
        self.called.set_result(None)
        self.called = asyncio.get_running_loop().create_future()

    async def wait(
        self, end: Callable[[], Awaitable[object]], *, deadline: float | None, retry_after: float
    ) -> None:
        """QueueFullError when there is no place, DeadlineError past the monotonic `deadline`."""
        if self._num_waiting >= self._max_waiting:
            raise QueueFullError(
                f"{self._num_waiting} requests already wait for this model to be loaded",
                retry_after=retry_after,
            )
        self._num_waiting += 1
        try:
            async with until(deadline, "the deadline passed while the model was being loaded"):
                await end()
        finally:
            self._num_waiting -= 1
