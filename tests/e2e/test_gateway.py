"""Headrace in front of two Headraces: one is killed under load, and nobody notices."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from executors.conftest import require_native_kernels
from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples/gateway.toml"
NUM_STREAMS = 200
NUM_PROMPTS = 8


class Gateway:
    """A gateway as the example has it, and the two servers behind it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.behind = [stack.enter_context(RealServer([f"chat={MODEL}"])) for _ in range(2)]
        config = EXAMPLE.read_text()
        for port, server in zip((8001, 8002), self.behind, strict=True):
            config = config.replace(f"http://127.0.0.1:{port}", server.url)
        path = folder / "gateway.toml"
        path.write_text(config)
        self.server = stack.enter_context(RealServer([], "--config", str(path)))

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    require_native_kernels()
    with ExitStack() as stack:
        yield Gateway(stack, tmp_path)


async def test_no_stream_breaks_or_changes_when_an_upstream_is_killed(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=None) as client:
        expected = [await stream(client, number) for number in range(NUM_PROMPTS)]
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        streams = [
            asyncio.create_task(stream(client, number % NUM_PROMPTS, begun[number]))
            for number in range(NUM_STREAMS)
        ]
        await asyncio.gather(*(event.wait() for event in begun[:16]))
        os.killpg(gateway.behind[0].process.pid, signal.SIGKILL)
        answers = await asyncio.gather(*streams)
        assert [answers[n] == expected[n % NUM_PROMPTS] for n in range(NUM_STREAMS)] == (
            [True] * NUM_STREAMS
        )
        health = (await client.get("/health")).json()
        taking = [each["taking"] for each in health["models"][0]["endpoints"]]
        assert sorted(taking) == [False, True]
        assert gateway.server.metric("headrace_endpoint_taking") == 1
        assert gateway.server.metric("headrace_answers_moved_total") >= 16


async def test_what_an_upstream_serves_is_served_here(gateway: Gateway) -> None:
    client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none")
    (model,) = (await client.models.list()).data
    assert model.id == "chat"
    answer = await client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
    )
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    async with httpx.AsyncClient(base_url=gateway.url) as plain:
        body = {"prompt": "Once upon a time", "max_tokens": 4}
        generated = (await plain.post("/api/v1/generate", json=body)).json()
        assert generated["usage"]["completion_tokens"] == 4
        assert generated["version"] == "1"
        tokens = (await plain.post("/tokenize", json={"prompt": "Hello there"})).json()
        assert tokens["count"] == len(tokens["tokens"]) > 0
    await client.close()


async def stream(client: httpx.AsyncClient, number: int, begun: asyncio.Event | None = None) -> Any:
    """The text, the ending and the token count of a whole answer, its events all of one kind."""
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
        "max_tokens": 24,
        "temperature": number % 2,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, endings, usage, names = "", [], None, set()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line async for line in events(response, begun)]
    assert lines.pop() == "[DONE]"
    for line in map(json.loads, lines):
        names.add((line["id"], line["model"], line["created"]))
        usage = line["usage"] or usage
        for choice in line["choices"]:
            assert "token_ids" not in choice
            text += choice["delta"].get("content") or ""
            endings += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(names) == 1
    assert usage is not None
    return text, endings, usage["completion_tokens"]


async def events(response: httpx.Response, begun: asyncio.Event | None) -> Any:
    number = 0
    async for line in response.aiter_lines():
        if line:
            number += 1
            yield line.removeprefix("data: ")
        if begun is not None and number > 3:
            begun.set()
