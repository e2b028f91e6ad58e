"""Runs a measurement so that ending it also ends every process it started."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """As `asyncio.run`, with SIGTERM as orderly an end as Ctrl-C."""
    return uvloop.run(_cancelled_by_sigterm(work))


async def _cancelled_by_sigterm(work: Coroutine[None, None, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
