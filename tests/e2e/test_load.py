"""Many clients at once, some of which leave."""

import asyncio
import random

import httpx
import pytest

from real_server import MODEL, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_200_mixed_requests_with_random_aborts_leave_nothing_behind(
    server: RealServer,
) -> None:
    chance = random.Random(11)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        results = await asyncio.gather(*(_one(client, chance) for _ in range(200)))
        assert results.count("left") > 20
        assert results.count("answered") > 100
        assert results.count("left") + results.count("answered") == 200
        await _settled(server)
    assert server.metric("headrace_kv_blocks_free") == server.metric("headrace_kv_blocks")


async def _one(client: httpx.AsyncClient, chance: random.Random) -> str:
    """A request of a random kind; three in ten leave at a random moment."""
    words = " ".join(chance.choices(("river", "mill", "wheel", "stone"), k=chance.randint(1, 40)))
    stream = chance.random() < 0.6
    body = {"model": MODEL, "max_tokens": chance.randint(1, 16), "stream": stream}
    route = "/v1/completions"
    if chance.random() < 0.5:
        route = "/v1/chat/completions"
        body["messages"] = [{"role": "user", "content": words}]
    else:
        body["prompt"] = words
        body["n"] = chance.choice((1, 1, 2))
    patience = chance.uniform(0.01, 3.0) if chance.random() < 0.3 else None
    try:
        async with asyncio.timeout(patience):
            await _read(client, route, body)
    except TimeoutError:
        return "left"
    return "answered"


async def _read(client: httpx.AsyncClient, route: str, body: dict[str, object]) -> None:
    async with client.stream("POST", route, json=body) as response:
        lines = [line async for line in response.aiter_lines() if line]
        assert response.status_code == 200, lines
        if body["stream"]:
            assert lines[-1] == "data: [DONE]"
            assert not any('"error"' in line for line in lines)


async def _settled(server: RealServer) -> None:
    """Gauges come with the engine's next word; ask until they are zero or the test times out."""
    gauges = ("headrace_requests_running", "headrace_requests_waiting")
    while any([await asyncio.to_thread(server.metric, gauge) for gauge in gauges]):
        await asyncio.sleep(0.1)
