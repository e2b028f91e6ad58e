"""Prompts far over the context, beside a stream."""

import asyncio
from pathlib import Path

import httpx
import pytest

from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_huge_prompts_are_refused_and_the_stream_beside_them_goes_on(
    tmp_path: Path,
) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text("[server]\nmax_body_bytes = 10485760\n")
    with RealServer((MODEL,), "--config", str(config)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            workers = server.workers()
            stream = asyncio.create_task(_stream(client))
            while not await asyncio.to_thread(server.metric, "headrace_generated_tokens_total"):
                await asyncio.sleep(0.05)
            for size in (600_000, 9_800_000):
                text = "some text " * (size // 10)
                for path, body in (
                    ("/v1/completions", {"prompt": text}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                ):
                    response = await client.post(path, json={"model": "smollm2", **body})
                    assert response.status_code == 400
                    assert response.json()["error"]["code"] == "context_length_exceeded"
            response = await client.post("/tokenize", json={"prompt": text})
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert (await stream).endswith("data: [DONE]\n\n")
            assert server.workers() == workers


async def _stream(client: httpx.AsyncClient) -> str:
    body = {"model": "smollm2", "prompt": "One, two", "max_tokens": 200, "stream": True}
    return (await client.post("/v1/completions", json={**body, "ignore_eos": True})).text
