"""Probes of upstreams that are not what they were, or are nothing at all."""

import asyncio
import time
from collections.abc import Callable

import pytest

from headrace.endpoints import UpstreamConfig
from headrace.routing.policy import RoutingPolicy
from headrace.routing.router import VersionRouter
from routing.behind import Behind, behind, healthy
from routing.upstream.misbehaving_server import WHOLE, Peer

OFTEN = RoutingPolicy(
    retry_delay=0.001,
    max_retry_delay=0.002,
    probe_interval=0.02,
    suspect_probe_interval=0.02,
    slow_start_time=0.0,
)


async def serve(peer: Peer) -> None:
    if not await healthy(peer):
        await peer.stream(*WHOLE)


async def hang(peer: Peer) -> None:
    await peer.gone()


async def no_http(peer: Peer) -> None:
    await peer.send(b"\x00\x01 hello\r\n\r\n")
    peer.close()


async def fail(peer: Peer) -> None:
    await peer.answer("no", "500 Internal Server Error")


async def refuse_the_key(peer: Peer) -> None:
    if peer.asked.path == "/health":
        await peer.answer("{}")
    else:
        await peer.answer("{}", "401 Unauthorized")


async def no_list(peer: Peer) -> None:
    await peer.answer("<html></html>", kind="text/html")


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.005)


async def out(routed: Behind, number: int = 0) -> str:
    """Why that one takes nothing, once it does not."""
    await until(lambda: not routed.status(number).is_taking)
    reason = routed.status(number).reason
    assert reason is not None
    return reason


@pytest.mark.parametrize("bad", [hang, no_http, fail, no_list])
async def test_one_that_was_never_well_is_out_after_one_probe(
    bad: Callable[[Peer], None],
) -> None:
    async with behind(serve, bad, policy=OFTEN, probe_timeout=0.1) as routed:  # type: ignore[arg-type]
        await asyncio.wait_for(routed.router.start(), 20)
        assert "upstream up1: " in await out(routed, 1)
        for _ in range(4):
            assert await routed.say() == "Hello you"
        assert routed.counts[1] == 0
        assert routed.status(0).is_taking


async def test_one_that_hangs_holds_up_no_other() -> None:
    async with behind(hang, serve, policy=OFTEN, probe_timeout=30.0) as routed:
        await asyncio.wait_for(routed.router.start(), 20)
        probes = len(routed.servers[1].requests)
        await until(lambda: len(routed.servers[1].requests) > probes + 4)
        assert len(routed.servers[0].requests) == 1


async def test_one_that_is_wanted_by_no_key_is_out_from_the_beginning() -> None:
    """Though its health is everybody's to see."""
    changes: list[None] = []
    async with behind(refuse_the_key) as routed:
        config = UpstreamConfig(url=routed.servers[0].url, name="up0")  # what it serves is asked
        router = VersionRouter(
            "chat@2",
            routed.router._config,
            (),
            [config],
            lambda: changes.append(None),
            policy=OFTEN,
        )
        starting = asyncio.create_task(router.start())
        await until(lambda: bool(changes))
        (status,) = router.statuses()
        assert (status.is_taking, starting.done()) == (False, False)
        assert status.reason == "upstream up0: it refused us with status 401"
        routed.servers[0].script = serve
        await asyncio.wait_for(starting, 20)
        await until(lambda: router.is_answering)
        await router.close()


async def test_what_it_serves_is_learned_again_after_it_was_away() -> None:
    async with behind(serve, policy=OFTEN) as routed:
        (server,) = routed.servers
        await routed.router.start()
        await until(lambda: len(server.requests) > 6)
        lists = sum(asked.path == "/v1/models" for asked in server.requests)
        assert lists == 1
        server.script = fail
        await out(routed)
        server.script = serve
        await until(lambda: routed.status(0).is_taking)
        assert sum(asked.path == "/v1/models" for asked in server.requests) > lists


async def test_nothing_is_asked_after_the_end() -> None:
    async with behind(serve, hang, policy=OFTEN) as routed:
        await routed.router.start()
        await routed.router.close()
        counts = [len(server.requests) for server in routed.servers]
        await asyncio.sleep(0.1)
        assert [len(server.requests) for server in routed.servers] == counts
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe-")]
