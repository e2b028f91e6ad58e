"""Who waits for a worker, and for what else."""

import asyncio
import time

import pytest

from counting_worker import CountingWorker, counted
from headrace.errors import DeadlineError
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.places import Places, UpstreamPlace
from headrace.routing.policy import RoutingPolicy
from routing.behind import Behind, behind, healthy
from routing.upstream.misbehaving_server import WHOLE, Peer

SOON = RoutingPolicy(
    retry_delay=0.001,
    max_retry_delay=0.002,
    probe_interval=0.02,
    suspect_probe_interval=0.02,
    min_retry_after=0.05,
    slow_start_time=0.0,
)


def kill(routed: Behind, worker: CountingWorker) -> None:
    worker.die()
    routed.router.worker_changed(worker)


async def serve(peer: Peer) -> None:
    if not await healthy(peer):
        await peer.stream(*WHOLE)


async def fail(peer: Peer) -> None:
    await peer.answer("{}", "500 Internal Server Error")


async def test_who_waits_for_a_worker_takes_an_upstream_that_comes_back() -> None:
    async with behind(serve, workers=["w"], policy=SOON) as routed:
        (server,), (worker,) = routed.servers, routed.workers
        await server.stop()
        await routed.router.start()
        while routed.status(0).is_taking:  # noqa: ASYNC110  # a probe tells nobody else
            await asyncio.sleep(0.01)
        kill(routed, worker)
        waiting = asyncio.create_task(routed.say())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await server.start()
        assert await asyncio.wait_for(waiting, 20) == "Hello you"
        assert not worker.is_ready


async def test_who_waits_for_a_worker_takes_an_upstream_that_is_trusted_again() -> None:
    policy = RoutingPolicy(
        retry_delay=0.001,
        max_retry_delay=0.002,
        min_retry_after=0.05,
        open_time=0.2,
        failure_threshold=1,
    )
    async with behind(fail, workers=["w"], policy=policy) as routed:
        assert [await routed.say() for _ in range(2)] == [counted()] * 2
        assert routed.status(0).breaker == "open"
        kill(routed, routed.workers[0])
        routed.servers[0].script = serve
        assert await asyncio.wait_for(routed.say(), 20) == "Hello you"


async def test_who_waits_looks_often_and_keeps_the_place_in_the_queue() -> None:
    async with behind(workers=["w"], policy=SOON) as routed:
        (worker,) = routed.workers
        kill(routed, worker)
        waiting = [asyncio.create_task(routed.say()) for _ in range(worker.max_in_flight)]
        await asyncio.sleep(4 * SOON.min_retry_after)
        assert not any(task.done() for task in waiting)
        worker.come_back()
        routed.router.worker_changed(worker)
        assert await asyncio.gather(*waiting) == [counted()] * worker.max_in_flight


async def test_who_waits_is_told_at_the_deadline_though_it_has_looked_before() -> None:
    async with behind(workers=["w"], policy=SOON) as routed:
        kill(routed, routed.workers[0])
        with pytest.raises(DeadlineError):
            await routed.say(within=3 * SOON.min_retry_after)
        assert routed.router._places._num_waiting == 0
        assert routed.router._places._tokens_waiting == 0


async def test_who_leaves_waits_no_more() -> None:
    async with behind(workers=["w"]) as routed:
        kill(routed, routed.workers[0])
        waiting = asyncio.create_task(routed.say())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert routed.router._places._num_waiting == 0


async def test_one_that_was_tried_is_taken_only_if_there_is_no_other() -> None:
    async with behind(serve, serve) as routed:
        places: Places = routed.router._places
        first, second = [place.endpoint for place in places]
        for tried, expected in (({first}, second), ({second}, first)):
            for _ in range(3):
                taken = await places.take(RequestKey(), None, tried=tried)
                assert taken is not None
                assert taken.endpoint is expected
        assert await places.take(RequestKey(), None, tried={first, second}) is not None
        assert await places.take(RequestKey(), None, unable={first, second}) is None
        assert all(isinstance(place, UpstreamPlace) for place in places)
        places.members.check(time.monotonic())
