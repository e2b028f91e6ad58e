import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.errors import ModelNotFoundError, WorkerDiedError
from headrace.generation import (
    Chunk,
    GenerationRequest,
    LanguageModel,
    ModelInfo,
    Prompt,
    SamplingParams,
    Usage,
)
from headrace.routing.rollouts.mirror import Mirror
from headrace.routing.rollouts.shadow import Answer, Shadow

GREEDY = GenerationRequest(
    request_id="r", prompt="hi", sampling=SamplingParams(temperature=0), deadline=0.0
)
ANSWER = Answer("one two", 2, 0.5)


class Candidate:
    """Answers from a script, one word a chunk, once it is let."""

    def __init__(self, *words: str, error: Exception | None = None) -> None:
        self.words = words
        self.error = error
        self.asked: list[GenerationRequest] = []
        self.num_leases = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @property
    def info(self) -> ModelInfo:
        raise NotImplementedError

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.asked.append(request)
        await self.may_answer.wait()
        for word in self.words:
            yield Chunk(0, word, [1])
        if self.error is not None:
            raise self.error
        yield Chunk(0, "", [], finish_reason="stop", usage=Usage(1, 7))

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    async def detokenize(self, token_ids: list[int]) -> str:
        raise NotImplementedError

    @asynccontextmanager
    async def acquire(self, model_id: str, _deadline: float) -> AsyncIterator[LanguageModel]:
        if model_id != "chat@2":
            raise ModelNotFoundError(model_id)
        self.num_leases += 1
        try:
            yield self
        finally:
            self.num_leases -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells of what nobody waits for
            await asyncio.sleep(0.001)


async def test_a_mirrored_request_is_the_same_with_time_of_its_own() -> None:
    candidate, shadow = Candidate("one", " two"), Shadow()
    mirror = Mirror(candidate.acquire)
    mirror.offer(shadow, "chat@2", GREEDY, ANSWER)
    assert candidate.asked == []  # whoever offers goes on at once
    await until(lambda: shadow.num_mirrored == 1)
    [asked] = candidate.asked
    assert (asked.request_id, asked.prompt, asked.sampling) == (
        "r-shadow",
        GREEDY.prompt,
        GREEDY.sampling,
    )
    assert asked.deadline is not None
    assert asked.deadline > 1
    assert (shadow.num_greedy, shadow.num_equal) == (1, 1)
    assert (shadow.stable_tokens.mean, shadow.candidate_tokens.mean) == (2, 7)
    await mirror.close()


@pytest.mark.parametrize(
    ("candidate", "model_id"),
    [
        (lambda: Candidate("one", error=WorkerDiedError("killed")), "chat@2"),
        (lambda: Candidate("one", error=ValueError("a fault of ours")), "chat@2"),
        (Candidate, "chat@3"),
    ],
)
async def test_what_fails_is_counted_and_is_nobodys_error(
    candidate: Callable[[], Candidate], model_id: str
) -> None:
    answering, shadow = candidate(), Shadow()
    mirror = Mirror(answering.acquire)
    mirror.offer(shadow, model_id, GREEDY, ANSWER)
    await until(lambda: shadow.num_failed == 1)
    assert (shadow.num_mirrored, answering.num_leases) == (0, 0)
    await mirror.close()


async def test_what_comes_while_enough_is_under_way_is_dropped_and_counted() -> None:
    candidate, shadow = Candidate("one"), Shadow()
    candidate.may_answer.clear()
    mirror = Mirror(candidate.acquire, max_at_a_time=2)
    for _ in range(5):
        mirror.offer(shadow, "chat@2", GREEDY, ANSWER)
    assert shadow.num_dropped == 3
    await until(lambda: len(candidate.asked) == 2)
    candidate.may_answer.set()
    await until(lambda: shadow.num_mirrored == 2)
    mirror.offer(shadow, "chat@2", GREEDY, ANSWER)
    await until(lambda: shadow.num_mirrored == 3)
    await mirror.close()


async def test_closing_leaves_what_is_under_way() -> None:
    candidate, shadow = Candidate("one"), Shadow()
    candidate.may_answer.clear()
    mirror = Mirror(candidate.acquire)
    mirror.offer(shadow, "chat@2", GREEDY, ANSWER)
    await until(lambda: len(candidate.asked) == 1)
    await mirror.close()
    assert candidate.num_leases == 0
    assert (shadow.num_mirrored, shadow.num_failed) == (0, 0)
