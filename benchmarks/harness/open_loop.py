"""Requests at random moments that no answer delays, as many independent users send them.

A closed loop sends less while the server stalls, and so hides the stall. Here each request is due
at a moment drawn before, and what it waited counts from there.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import msgspec

from harness.load import Sample

Send = Callable[[int], Awaitable[Sample]]
"""Sends the prompt of that number."""

MAX_OUT = 1000  # requests at once; more than that is no load that a server keeps up with


class Answer(msgspec.Struct, frozen=True):
    """What came of the request that was due at a moment of the monotonic clock."""

    due: float
    prompt: int
    sample: Sample


class OverloadError(Exception):
    """Requests pile up: the rate is more than the server can do."""


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Seconds from one request to the next, for ever, `rate` a second on average."""
    drawn = random.Random(seed)
    while True:
        yield drawn.expovariate(rate)


async def open_loop(
    send: Send, gaps: Iterator[float], num_prompts: int, during: Coroutine[Any, Any, None]
) -> list[Answer]:
    """Send for as long as `during` runs, then wait for what is out; raises what `during` raised."""
    answers: list[Answer] = []

    async def ask(due: float, prompt: int) -> None:
        answers.append(Answer(due, prompt, await send(prompt)))

    async with asyncio.TaskGroup() as group:
        work = group.create_task(during)
        out: set[asyncio.Task[None]] = set()
        due, number = time.monotonic(), 0
        while True:
            due += next(gaps)
            await asyncio.wait([work], timeout=max(0.0, due - time.monotonic()))
            if work.done():
                break
            if len(out) >= MAX_OUT:
                raise OverloadError(f"{MAX_OUT} requests are without an answer")
            asking = group.create_task(ask(due, number % num_prompts))
            out.add(asking)
            asking.add_done_callback(out.discard)
            number += 1
    return answers
