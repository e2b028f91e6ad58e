"""Asks candidates what others were answered, beside the traffic. Its answers go nowhere.

Nobody waits for a mirrored request: it begins when the client has its answer, a few run at a time,
and what comes while they do is dropped and counted.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
import structlog

from headrace.generation import GenerationRequest, LanguageModel
from headrace.routing.rollouts.shadow import Answer, Shadow

log = structlog.get_logger("headrace.routing")

Acquire = Callable[[str, float], AbstractAsyncContextManager[LanguageModel]]
"""Leases a version by its id until a deadline on the monotonic clock."""

MAX_AT_A_TIME = 4
TIMEOUT = 120.0  # seconds


class Mirror:
    """Owns the requests under way."""

    def __init__(self, acquire: Acquire, *, max_at_a_time: int = MAX_AT_A_TIME) -> None:
        self._acquire = acquire
        self._max_at_a_time = max_at_a_time
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(
        self, shadow: Shadow, model_id: str, request: GenerationRequest, answer: Answer
    ) -> None:
        """Ask a version the same, unless there is too much to do; `answer` is what was answered."""
        if len(self._tasks) >= self._max_at_a_time:
            shadow.num_dropped += 1
            return
        task = asyncio.create_task(self._ask(shadow, model_id, request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, shadow: Shadow, model_id: str, request: GenerationRequest, answer: Answer
    ) -> None:
        deadline = time.monotonic() + TIMEOUT
        asked = msgspec.structs.replace(
            request, request_id=f"{request.request_id}-shadow", deadline=deadline
        )
        try:
            async with asyncio.timeout(TIMEOUT), self._acquire(model_id, deadline) as model:
                theirs = await _answer(model, asked)
        except Exception as error:  # noqa: BLE001 - whatever failed, it is nobody's request
            shadow.num_failed += 1
            log.info("shadow.failed", model_id=model_id, reason=str(error))
            return
        shadow.compare(answer, theirs, is_greedy=request.sampling.temperature == 0)


async def _answer(model: LanguageModel, request: GenerationRequest) -> Answer:
    began = time.monotonic()
    texts: list[str] = []
    num_tokens = 0
    async for chunk in model.generate(request):
        texts.append(chunk.text)
        num_tokens += len(chunk.token_ids)
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
    return Answer("".join(texts), num_tokens, time.monotonic() - began)
