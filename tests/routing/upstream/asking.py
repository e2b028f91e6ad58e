"""Short ways to ask an upstream."""

import time
from typing import Any

from headrace.engine.stream import fold_chunks
from headrace.errors import HeadraceError
from headrace.generation import Chunk, GenerationRequest, Prompt, SamplingParams
from headrace.routing.upstream.upstream import Upstream


def request(
    prompt: Prompt = "Hi",
    *,
    within: float | None = None,
    request_id: str = "r1",
    trace: dict[str, str] | None = None,
    **sampling: Any,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=SamplingParams(**{"max_tokens": 8, **sampling}),
        trace=trace or {},
        deadline=None if within is None else time.monotonic() + within,
    )


async def chunks(upstream: Upstream, prompt: Prompt = "Hi", **options: Any) -> list[Chunk]:
    return [chunk async for chunk in upstream.generate(request(prompt, **options))]


async def answer(upstream: Upstream, prompt: Prompt = "Hi", **options: Any) -> Chunk:
    (folded,) = fold_chunks(await chunks(upstream, prompt, **options))
    return folded


async def until_error(upstream: Upstream, **options: Any) -> tuple[list[Chunk], HeadraceError]:
    """What came before the answer failed, and how it did."""
    got: list[Chunk] = []
    try:
        async for chunk in upstream.generate(request(**options)):
            got.append(chunk)  # noqa: PERF401  # what came before the error
    except HeadraceError as error:
        return got, error
    raise AssertionError("the answer was whole")
