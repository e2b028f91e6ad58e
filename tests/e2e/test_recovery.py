"""The worker is killed under load; the server goes on by itself."""

import asyncio
import os
import signal
import time

import httpx
import pytest

from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_a_killed_worker_is_replaced_and_nobody_is_lied_to() -> None:
    with RealServer() as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            begun = asyncio.Event()
            streams = [asyncio.create_task(_stream(client, begun)) for _ in range(6)]
            late = [asyncio.create_task(_full(client)) for _ in range(6)]
            await begun.wait()
            (worker,) = server.workers()
            os.kill(worker, signal.SIGKILL)
            outcomes = await asyncio.gather(*streams)
            assert set(outcomes) <= {"complete", "honest error"}
            assert "honest error" in outcomes
            assert set(await asyncio.gather(*late)) == {
                200
            }  # nothing was sent, so they are retried
            assert await _full(client) == 200
        (replacement,) = server.workers()
        assert replacement != worker
        assert server.metric("headrace_worker_restarts_total") == 1
        assert "worker" in server.log()


async def _stream(client: httpx.AsyncClient, begun: asyncio.Event) -> str:
    body = {"model": MODEL, "prompt": "Tell a story.", "max_tokens": 64, "stream": True}
    body["ignore_eos"] = True
    async with client.stream("POST", "/v1/completions", json=body) as response:
        lines = []
        async for line in response.aiter_lines():
            begun.set()
            lines += [line] if line else []
    if lines[-1] == "data: [DONE]" and not any('"error"' in line for line in lines):
        return "complete"
    finished = any('"finish_reason":"' in line.replace(" ", "") for line in lines)
    return "false end" if finished else "honest error"


async def _full(client: httpx.AsyncClient) -> int:
    """The status, once a refusal that named a time to come back has been honoured."""
    body = {"model": MODEL, "prompt": "Tell a story.", "max_tokens": 8}
    until = time.monotonic() + 60
    while True:
        response = await client.post("/v1/completions", json=body)
        if response.status_code != 503 or time.monotonic() > until:
            return response.status_code
        await asyncio.sleep(float(response.headers["Retry-After"]))
