"""Work that ends when its client leaves or its time is over."""

import asyncio
import time
from collections.abc import Awaitable

import structlog
from starlette.types import Receive, Scope

from headrace.api.connection import connection_of
from headrace.api.exchange import exchange_of
from headrace.errors import DeadlineError, HeadraceError

log = structlog.get_logger("headrace.api")


async def until_disconnect(work: Awaitable[None], scope: Scope, receive: Receive) -> bool:
    """Do the work, or cancel it as soon as the client is gone; tells whether it was done."""
    departure = _Interruption()
    connection = connection_of(scope)
    if connection is None:
        return await _until_message(work, scope, receive, departure)
    connection.when_lost(departure.happen)
    try:
        return await _done(work, scope, departure)
    finally:
        connection.when_lost(None)


class within:  # noqa: N801 - reads as a word, as asyncio.timeout does
    """Cancel the block when the monotonic clock reads `deadline`; DeadlineError says so.

    asyncio.timeout for one purpose, at a fraction of its cost: every request passes here.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def __enter__(self) -> None:
        self._expiry = _Interruption()
        delay = max(0.0, self._deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expiry.happen)

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        self._timer.cancel()
        if self._expiry.end() and isinstance(exc, asyncio.CancelledError):
            raise DeadlineError(
                "The request's time is over before its answer was complete."
            ) from None


class _Interruption:
    """Cancels the task that this was made in, once; others may cancel it too and are obeyed."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancelled = task.cancelling()
        self._has_happened = False
        self._is_over = False

    def happen(self, _leaving: object = None) -> None:
        if not (self._has_happened or self._is_over):
            self._has_happened = True
            self._task.cancel()

    def end(self) -> bool:
        """Let it happen no more; whether it has, and nobody else has cancelled the task."""
        self._is_over = True
        return self._has_happened and self._task.uncancel() <= self._num_cancelled


async def _done(work: Awaitable[None], scope: Scope, departure: _Interruption) -> bool:
    try:
        await work
    except (asyncio.CancelledError, HeadraceError):
        if not departure.end():
            raise
        return False  # what failed for nobody is told to nobody
    except Exception:
        if not departure.end():
            raise  # to `Faults`, which answers; below, nobody is left to be answered
        log.exception("request.fault", request_id=exchange_of(scope).request_id)
        return False
    departure.end()
    return True


async def _until_message(
    work: Awaitable[None], scope: Scope, receive: Receive, departure: _Interruption
) -> bool:
    """Learn of the departure as ASGI has it, from a message for which a task must wait."""
    leaving = asyncio.create_task(_disconnect(receive))
    leaving.add_done_callback(departure.happen)
    try:
        return await _done(work, scope, departure)
    finally:
        leaving.cancel()
        # It belongs to this request and does not outlive it.
        await asyncio.gather(leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
