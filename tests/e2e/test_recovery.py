"""The worker is killed under load: every answer goes on where it was and is the same in the end."""

import asyncio
import json
import os
import signal
from typing import Any

import httpx
import pytest

from executors.conftest import require_native_kernels
from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REQUESTS: list[dict[str, Any]] = [
    {
        "model": MODEL,
        "prompt": f"Tell a story about {subject}.",
        "max_tokens": 96,
        "temperature": temperature,
        "seed": 1,
        "n": n,
        "stream": stream,
        "ignore_eos": True,
    }
    for subject, temperature, n in (("a mill", 0, 1), ("a river", 0.8, 1), ("a wheel", 1.2, 2))
    for stream in (True, False)
]


async def test_no_answer_is_lost_or_changed_when_its_worker_is_killed() -> None:
    require_native_kernels()
    with RealServer() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            expected = [await _texts(client, request) for request in REQUESTS]
            begun = asyncio.Event()
            answers = [asyncio.create_task(_texts(client, each, begun)) for each in REQUESTS]
            await begun.wait()
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
            assert await asyncio.gather(*answers) == expected
        (replacement,) = server.workers()
        assert replacement != worker
        assert server.metric("headrace_worker_restarts_total") == 1
        assert "worker" in server.log()


async def _texts(
    client: httpx.AsyncClient, body: dict[str, Any], begun: asyncio.Event | None = None
) -> list[str]:
    """The text of each choice of an answer that came whole."""
    if not body["stream"]:
        answer = await client.post("/v1/completions", json=body)
        return [choice["text"] for choice in answer.json()["choices"]]
    texts, reasons = [""] * body["n"], [None] * body["n"]
    async with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line async for line in _events(response, begun)]
    assert lines.pop() == "[DONE]"
    for line in lines:
        for choice in json.loads(line)["choices"]:
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert reasons == ["length"] * body["n"]
    return texts


async def _events(response: httpx.Response, begun: asyncio.Event | None) -> Any:
    number = 0
    async for line in response.aiter_lines():
        if line:
            number += 1
            yield line.removeprefix("data: ")
        if begun is not None and number > 10:
            begun.set()
