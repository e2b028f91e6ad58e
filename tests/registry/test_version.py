"""How the endpoints of a version end, with workers and upstreams or upstreams alone."""

import asyncio
from pathlib import Path

import pytest

from headrace.endpoints import RoutingConfig, UpstreamConfig
from headrace.errors import HeadraceError
from headrace.registry.spec import ModelSpec
from routing.behind import healthy
from routing.upstream.misbehaving_server import DONE, STREAM_HEAD, MisbehavingServer, Peer, text
from scripted_serving import Served, eventually, serving, spec


class SlowUpstream:
    """Says a word, and the rest when it is told to."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        if await healthy(peer):
            return
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(text("first "))
        self.has_begun.set()
        await self.may_end.wait()
        await peer.send_chunk(text("last", finish_reason="stop"))
        await peer.send_chunk(DONE)
        await peer.send_chunk("")


def mixed(url: str, *, has_workers: bool) -> ModelSpec:
    return spec(
        1,
        "good" if has_workers else url,
        upstreams=(UpstreamConfig(url=url, model="m", dialect="vllm"),),
        routing=RoutingConfig(strategy="round_robin", migration="off"),
    )


async def ask_upstream(served: Served, upstream: SlowUpstream) -> asyncio.Task[str]:
    """Ask until it is the upstream's turn."""
    while True:
        answer = asyncio.create_task(served.answer("count 1"))
        begun = asyncio.create_task(upstream.has_begun.wait())
        await asyncio.wait([answer, begun], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if not answer.done():
            return answer


@pytest.mark.parametrize("has_workers", [True, False])
async def test_an_upstreams_stream_has_the_time_of_a_drain(
    tmp_path: Path, *, has_workers: bool
) -> None:
    upstream = SlowUpstream()
    async with MisbehavingServer(upstream) as server:
        specs = [mixed(server.url, has_workers=has_workers)]
        async with serving(tmp_path, specs=specs) as served:
            answer = await ask_upstream(served, upstream)
            closing = asyncio.create_task(served.registry.close(30))
            await eventually(lambda: not served.status.pids)
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in (answer, closing))
            upstream.may_end.set()
            assert await answer == "first last"
            await closing


@pytest.mark.parametrize("has_workers", [True, False])
async def test_a_drain_ends_an_upstreams_stream_that_takes_longer(
    tmp_path: Path, *, has_workers: bool
) -> None:
    upstream = SlowUpstream()
    async with MisbehavingServer(upstream) as server:
        specs = [mixed(server.url, has_workers=has_workers)]
        async with serving(tmp_path, specs=specs) as served:
            answer = await ask_upstream(served, upstream)
            async with asyncio.timeout(20):
                await served.registry.close(0.1)
            with pytest.raises(HeadraceError):
                await answer
            upstream.may_end.set()
            await eventually(lambda: not server._tasks)
