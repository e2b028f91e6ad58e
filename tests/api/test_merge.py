import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.api.merge import MAX_CONCURRENT, chunks_of
from headrace.errors import WorkerDiedError
from headrace.generation import Chunk, GenerationRequest, SamplingParams

running: set[str] = set()


def requests(count: int, n: int = 1) -> list[GenerationRequest]:
    return [
        GenerationRequest(request_id=str(i), prompt=str(i), sampling=SamplingParams(n=n))
        for i in range(count)
    ]


async def two_each(request: GenerationRequest) -> AsyncIterator[Chunk]:
    running.add(request.request_id)
    try:
        for word in "ab":
            for index in range(request.sampling.n):
                await asyncio.sleep(0)
                yield Chunk(index, f"{request.prompt}{word}", [1])
    finally:
        running.discard(request.request_id)


async def test_choices_of_several_prompts_are_numbered_through() -> None:
    chunks = [chunk async for chunk in chunks_of(two_each, requests(3, n=2))]
    texts: dict[int, str] = {}
    for chunk in chunks:
        texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
    assert texts == {0: "0a0b", 1: "0a0b", 2: "1a1b", 3: "1a1b", 4: "2a2b", 5: "2a2b"}


async def test_only_so_many_prompts_run_at_once() -> None:
    most = 0
    async for _ in chunks_of(two_each, requests(3 * MAX_CONCURRENT)):
        most = max(most, len(running))
    assert most == MAX_CONCURRENT


async def test_one_failure_ends_all_of_them() -> None:
    async def third_fails(request: GenerationRequest) -> AsyncIterator[Chunk]:
        if request.request_id == "2":
            raise WorkerDiedError("died")
        async for chunk in two_each(request):
            yield chunk

    with pytest.raises(WorkerDiedError):
        _ = [chunk async for chunk in chunks_of(third_fails, requests(5))]
    assert not running


async def test_closing_aborts_what_runs_and_starts_no_more() -> None:
    started: list[str] = []

    async def endless(request: GenerationRequest) -> AsyncIterator[Chunk]:
        started.append(request.request_id)
        async for chunk in two_each(request):
            yield chunk
        await asyncio.Event().wait()

    chunks = chunks_of(endless, requests(2 * MAX_CONCURRENT))
    await anext(chunks)
    await chunks.aclose()
    assert not running
    assert len(started) == MAX_CONCURRENT
