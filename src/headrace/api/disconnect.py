"""Work that ends when its client leaves or its time is over."""

import asyncio
import time
from collections.abc import Awaitable
from types import TracebackType

from starlette.types import Receive, Scope

from headrace.api.connection import connection_of
from headrace.errors import DeadlineError


async def until_disconnect(work: Awaitable[None], scope: Scope, receive: Receive) -> bool:
    """Do the work, or cancel it as soon as the client is gone; tells whether it was done."""
    connection = connection_of(scope)
    if connection is None:
        return await _until_message(work, receive)
    departure = _Departure()
    connection.when_lost(departure.happen)
    try:
        return await departure.end(work)
    finally:
        connection.when_lost(None)


class within:  # noqa: N801 - reads as a word, as asyncio.timeout does
    """Cancel the block when the monotonic clock reads `deadline`; DeadlineError says so."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    async def __aenter__(self) -> None:
        self._limit = asyncio.timeout(max(0.0, self._deadline - time.monotonic()))
        await self._limit.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._limit.__aexit__(kind, exc, trace)
        except TimeoutError:  # the limit's own; another one passes by
            raise DeadlineError(
                "The request's time is over before its answer was complete."
            ) from None


class _Departure:
    """A client's leaving, which cancels the task that this was made in."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancelled = task.cancelling()
        self._has_happened = False

    def happen(self, _leaving: object = None) -> None:
        if not self._has_happened:
            self._has_happened = True
            self._task.cancel()

    async def end(self, work: Awaitable[None]) -> bool:
        """Do the work; False when it was cut off by the departure and by nothing else."""
        try:
            await work
        except BaseException:
            # Whoever else cancels the task is obeyed; what fails for nobody is told to nobody.
            if not self._has_happened or self._task.uncancel() > self._num_cancelled:
                raise
            return False
        if self._has_happened:
            self._task.uncancel()
        return True


async def _until_message(work: Awaitable[None], receive: Receive) -> bool:
    """Learn of the departure as ASGI has it, from a message for which a task must wait."""
    departure = _Departure()
    leaving = asyncio.create_task(_disconnect(receive))
    leaving.add_done_callback(departure.happen)
    try:
        return await departure.end(work)
    finally:
        leaving.remove_done_callback(departure.happen)
        leaving.cancel()
        # It belongs to this request and does not outlive it.
        await asyncio.gather(leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
