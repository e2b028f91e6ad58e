"""How the server ends: drained, forced, or killed."""

import asyncio
import os
import signal

import httpx
import pytest

from real_server import MODEL, RealServer, children, is_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_sigterm_under_load_loses_no_started_request_and_leaves_no_orphan() -> None:
    with RealServer((MODEL,), "--shutdown-timeout", "60") as server:
        below = children(server.pid)
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            started = [asyncio.Event() for _ in range(8)]
            streams = [asyncio.create_task(_stream(client, event)) for event in started]
            for event in started:
                await event.wait()
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.gather(*streams) == ["complete"] * 8
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert not [pid for pid in below if is_running(pid)]


async def test_readiness_ends_with_the_signal_while_the_listener_stays() -> None:
    with RealServer((MODEL,), "--shutdown-timeout", "60") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            started = asyncio.Event()
            stream = asyncio.create_task(_stream(client, started))
            await started.wait()
            server.process.send_signal(signal.SIGTERM)
            while (response := await client.get("/health/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            assert response.status_code == 503
            assert await stream == "complete"
        assert await asyncio.to_thread(server.process.wait, 30) == 0


async def test_a_second_signal_forces_the_end() -> None:
    with RealServer((MODEL,), "--shutdown-timeout", "600") as server:
        below = children(server.pid)
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            started = asyncio.Event()
            stream = asyncio.create_task(_stream(client, started, max_tokens=4000))
            await started.wait()
            server.process.send_signal(signal.SIGTERM)
            while (await client.get("/health/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 30) == 1
            assert await stream != "complete"
        assert not [pid for pid in below if is_running(pid)]


async def test_a_killed_server_takes_its_worker_with_it() -> None:
    with RealServer() as server:
        (worker,) = server.workers()
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        async with asyncio.timeout(30):
            while is_running(worker):
                await asyncio.sleep(0.05)


async def _stream(client: httpx.AsyncClient, started: asyncio.Event, max_tokens: int = 48) -> str:
    body = {"model": MODEL, "prompt": "Tell a story.", "max_tokens": max_tokens, "stream": True}
    body["ignore_eos"] = True
    last = ""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                started.set()
                last = line or last
    except httpx.TransportError:
        return "broken"
    return "complete" if last == "data: [DONE]" else "incomplete"
