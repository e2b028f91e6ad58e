"""The promise of the native executor, through the whole server: an answer is the same, bit for bit.

Each request is answered once by a quiet server, alone. Then again: by a server with other threads,
a smaller step and a KV cache too small for all, in random company, streamed or not, with
its prompt cached or not. Texts and log-probabilities must be equal to the last digit.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PRESSED = """
[[models]]
name = "smollm2"
source = "smollm2"
[models.engine]
executor = "native"
num_threads = {threads}
max_num_batched_tokens = {budget}
max_num_seqs = 12
max_model_len = 512
kv_cache_memory = "{memory}"
prefix_caching = {caching}
"""

Answer = list[tuple[str, tuple[tuple[str, float], ...]]]
"""Each choice's text and its tokens with their log-probabilities."""


def requests() -> list[dict[str, Any]]:
    chance = random.Random(7)
    words = ("river", "mill", "wheel", "stone", "the", "of", "and", "runs", "1", "2")
    opening = "A headrace is the channel that leads water to a mill. " * 4
    made = []
    for number in range(16):
        prompt = opening * (number % 3 == 0) + " ".join(
            chance.choices(words, k=chance.randint(1, 90))
        )
        made.append(
            {
                "model": MODEL,
                "prompt": prompt,
                "max_tokens": chance.randint(8, 60),
                "temperature": chance.choice((0, 0.7, 1.3)),
                "top_p": chance.choice((1.0, 0.9)),
                "seed": number,
                "logprobs": chance.choice((0, 3)),
                "n": chance.choice((1, 1, 2)),
                "ignore_eos": True,
            }
        )
    return made


async def test_answers_do_not_depend_on_company_threads_steps_caching_or_streaming(
    tmp_path: Path,
) -> None:
    bodies = requests()
    with RealServer((), "--config", _config(tmp_path, threads=1, memory="1GiB")) as quiet:
        async with _client(quiet) as client:
            alone = [await _answer(client, body, streamed=False) for body in bodies]
    pressed = _config(tmp_path, threads=2, budget=96, memory="24MiB", caching=True)
    with RealServer((), "--config", pressed) as server:
        for seed in range(3):
            await _check_company(server, bodies, alone, seed)
        assert server.metric("headrace_preemptions_total") > 0
        assert server.metric("headrace_prefix_cache_hits_total") > 0


async def _check_company(
    server: RealServer, bodies: Sequence[dict[str, Any]], alone: Sequence[Answer], seed: int
) -> None:
    chance = random.Random(seed)
    order = chance.sample(range(len(bodies)), len(bodies))
    async with _client(server) as client:
        answers = await asyncio.gather(
            *(_answer(client, bodies[each], streamed=chance.random() < 0.5) for each in order)
        )
    for each, answer in zip(order, answers, strict=True):
        assert answer == alone[each], bodies[each]


def _config(
    folder: Path, *, threads: int, memory: str, budget: int = 512, caching: bool = False
) -> str:
    path = folder / f"{threads}.toml"
    path.write_text(
        PRESSED.format(threads=threads, memory=memory, budget=budget, caching=json.dumps(caching))
    )
    return str(path)


def _client(server: RealServer) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits)


async def _answer(client: httpx.AsyncClient, body: dict[str, Any], *, streamed: bool) -> Answer:
    if not streamed:
        response = await client.post("/v1/completions", json=body)
        choices = response.raise_for_status().json()["choices"]
        return _folded(choices, body["n"])
    choices = []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                choices += event["choices"]
    return _folded(choices, body["n"])


def _folded(parts: Sequence[dict[str, Any]], count: int) -> Answer:
    texts = [""] * count
    tokens: list[list[tuple[str, float]]] = [[] for _ in range(count)]
    for part in parts:
        texts[part["index"]] += part["text"]
        if part["logprobs"] is not None:
            tokens[part["index"]] += zip(
                part["logprobs"]["tokens"], part["logprobs"]["token_logprobs"], strict=True
            )
    assert all(tokens)
    return [(text, tuple(found)) for text, found in zip(texts, tokens, strict=True)]
