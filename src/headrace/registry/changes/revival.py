"""Brings a version that has served before back to life. Knows no pointer and no database."""

import asyncio
import time

from headrace.errors import DeadlineError
from headrace.registry.health.score import Health
from headrace.registry.residency import Residency
from headrace.registry.version import Version


async def bring_back(residency: Residency, version: Version, deadline: float | None = None) -> None:
    """Load it anew; when that fails it stays what it is.

    DeadlineError past the monotonic `deadline` while it waits for a place.
    """
    await residency.take_down(version)  # a request may be waking it
    version.health = Health()
    await residency.bring_up(version, deadline)


async def unused(version: Version, deadline: float | None) -> None:
    """Wait until the requests that it has have ended; DeadlineError past `deadline`."""
    delay = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        async with asyncio.timeout(delay):
            await version.unused()
    except TimeoutError:
        message = f"the deadline passed while requests of {version.model_id} were ending"
        raise DeadlineError(message) from None
