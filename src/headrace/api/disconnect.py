"""Work that ends when its client leaves or its time is over."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from starlette.types import Receive

from headrace.errors import DeadlineError


async def until_disconnect(work: Coroutine[object, object, None], receive: Receive) -> bool:
    """Do the work, or cancel it as soon as the client is gone; tells whether it was done."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        working.cancel()
        leaving.cancel()
        # Both belong to this request: neither outlives it.
        await asyncio.gather(working, leaving, return_exceptions=True)


@asynccontextmanager
async def within(deadline: float) -> AsyncIterator[None]:
    """Cancel the block when the monotonic clock reads `deadline`; DeadlineError says so."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(max(0.0, deadline - started)) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineError("The request's time is over before its answer was complete.") from None


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
