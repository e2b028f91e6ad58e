"""A closed loop of users, and what came of it. Knows no server and no protocol."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec


class Load(msgspec.Struct, frozen=True):
    """`concurrency` users, each sending its next prompt when its last answer is complete.

    They stop after `seconds` and `min_requests`, whichever is later, or when the prompts run out.
    """

    prompts: list[list[int]]
    concurrency: int
    output_tokens: int
    min_requests: int
    seconds: float


class Sample(msgspec.Struct, frozen=True):
    """One request on the monotonic clock; `arrivals` are the moments at which text came.

    An error is final when the server refused the request for good. `version` is what the answer
    names as its model id, where it does.
    """

    sent: float
    arrivals: list[float]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None
    is_final: bool = False
    version: str | None = None
    text: str = ""


class Run(msgspec.Struct, frozen=True):
    """All requests of one load; up to `full_until` every user was busy."""

    samples: list[Sample]
    started: float
    full_until: float


class StopRule:
    """Says when a user may stop, and remembers when the first one did."""

    def __init__(self, load: Load, started: float) -> None:
        self._load = load
        self._started = started
        self._num_sent = 0
        self.full_until: float | None = None

    def sent(self) -> None:
        self._num_sent += 1

    def reached(self, now: float) -> bool:
        is_late = now - self._started >= self._load.seconds
        return is_late and self._num_sent >= self._load.min_requests

    def stopped(self, now: float) -> None:
        if self.full_until is None:
            self.full_until = now


async def closed_loop(send: Callable[[list[int]], Awaitable[Sample]], load: Load) -> Run:
    """Put `load` on whatever `send` reaches; a failed request is a sample with an error."""
    started = time.monotonic()
    rule = StopRule(load, started)
    prompts = iter(load.prompts)
    samples: list[Sample] = []

    async def user(own: Iterable[list[int]]) -> None:
        for prompt in own:
            rule.sent()
            samples.append(await send(prompt))
            if rule.reached(time.monotonic()):
                break
        rule.stopped(time.monotonic())

    async with asyncio.TaskGroup() as users:
        for _ in range(load.concurrency):
            users.create_task(user(prompts))
    assert rule.full_until is not None
    return Run(samples, started, rule.full_until)
