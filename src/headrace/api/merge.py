"""Several generations as one iterator of chunks, some of them at a time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from headrace.generation import Chunk, GenerationRequest

MAX_CONCURRENT = 32

Generate = Callable[[GenerationRequest], AsyncIterator[Chunk]]


def chunks_of(
    generate: Generate, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Chunk, None]:
    """The chunks of all requests; choice c of request i has index i * n + c.

    Close it to abort what has not ended.
    """
    if len(requests) == 1:
        return closable(generate(requests[0]))
    return _merged(generate, requests)


def closable(chunks: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    """What `LanguageModel.generate` returns can be closed, which its iterator type cannot say."""
    return cast("AsyncGenerator[Chunk, None]", chunks)


async def _merged(
    generate: Generate, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Chunk, None]:
    # One place: a reader that does not read holds up every generation here.
    arrived: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(maxsize=1)
    pumps = asyncio.create_task(_pump_all(generate, requests, arrived))
    try:
        while (chunk := await arrived.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
    finally:
        pumps.cancel()
        await asyncio.wait([pumps])


async def _pump_all(
    generate: Generate,
    requests: Sequence[GenerationRequest],
    arrived: asyncio.Queue[Chunk | Exception | None],
) -> None:
    places = asyncio.Semaphore(MAX_CONCURRENT)

    async def pump(number: int, request: GenerationRequest) -> None:
        first = number * request.sampling.n
        async with places, aclosing(closable(generate(request))) as chunks:
            async for chunk in chunks:
                await arrived.put(msgspec.structs.replace(chunk, index=first + chunk.index))

    try:
        async with asyncio.TaskGroup() as group:
            for number, request in enumerate(requests):
                group.create_task(pump(number, request))
    except ExceptionGroup as failures:  # the reader is to be told whatever it was
        await arrived.put(failures.exceptions[0])
    else:
        await arrived.put(None)
