"""Owns what goes on in the background: each task ends by itself or with the server."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.errors import DrainingError

T = TypeVar("T")


class Tasks:
    """A failed task is told of by the loop's exception handler, as asyncio does."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: set[asyncio.Task[Any]] = set()  # those that somebody asked for and waits for

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Do all of it, though whoever waits for it may leave; DrainingError when `close` ends it.

        `asked_for` waits for it too.
        """
        task = self.start(work)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                message = "the server was stopped amid the change"
                raise DrainingError(message, retry_after=1.0) from None
            raise

    async def asked_for(self) -> None:
        """Wait until all that is to be done to its end is done."""
        while self._asked:
            await asyncio.wait(self._asked)

    async def close(self) -> None:
        """Cancel what runs and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
