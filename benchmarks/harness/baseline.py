"""What versions do while nothing happens to them: the texts they give, and how many a second."""

import asyncio
from collections.abc import Sequence

from harness.client import CompletionClient, ServerError
from harness.load import Load, Sample, closed_loop
from harness.summary import throughput

NUM_USERS = 32  # that saturate a version
ENDLESS = 1000  # times that the prompts come again


async def texts_alone(
    clients: Sequence[CompletionClient], prompts: Sequence[list[int]], output_tokens: int
) -> list[list[str]] | None:
    """Each version's answer to each prompt; None when they do not tell the versions apart."""
    texts = []
    for client in clients:
        asked = (client.complete(prompt, output_tokens) for prompt in prompts)
        samples = await asyncio.gather(*asked)
        _raise_first(samples)
        texts.append([sample.text for sample in samples])
    return None if all(each == texts[0] for each in texts[1:]) else texts


async def capacity(
    client: CompletionClient, prompts: list[list[int]], output_tokens: int, seconds: float
) -> float:
    """Requests a second of a version that always has more to do."""
    load = Load(prompts * ENDLESS, NUM_USERS, output_tokens, 2 * NUM_USERS, seconds)
    run = await closed_loop(lambda prompt: client.complete(prompt, output_tokens), load)
    _raise_first(run.samples)
    return throughput(run) / output_tokens


def _raise_first(samples: Sequence[Sample]) -> None:
    if error := next((sample.error for sample in samples if sample.error), None):
        raise ServerError(error)
