"""Answers that move between workers and upstreams of one version."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from counting_worker import LENGTH, CountingWorker, counted
from headrace.endpoints import RoutingConfig
from headrace.errors import HeadraceError
from headrace.generation import Answered, Chunk
from headrace.routing.attempts.routed import RoutedGeneration
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.outcome import Verdict
from routing.behind import Behind, ask, behind
from routing.upstream.misbehaving_server import DONE, STREAM_HEAD, Peer, text, usage


def counting(num_tokens: int = LENGTH) -> Callable[[Peer], Awaitable[None]]:
    """One of us that counts as a CountingWorker does, so many tokens at a time, then drops."""

    async def serve(peer: Peer) -> None:
        body = peer.asked.json
        begun = body.get("answered") or [{"token_ids": []}]
        start = len(begun[0]["token_ids"])
        await peer.send(STREAM_HEAD)
        for number in range(start, min(LENGTH, start + num_tokens)):
            reason = "length" if number == LENGTH - 1 else None
            await peer.send_chunk(text(f"{number} ", 0, reason, token_ids=[number]))
            await asyncio.sleep(0.005)
        if start + num_tokens < LENGTH:
            peer.abort()
        await peer.send_chunk(usage(1, LENGTH) + DONE)
        await peer.send_chunk("")

    return serve


async def rest_of(stream: AsyncIterator[Chunk]) -> str:
    return "".join([chunk.text async for chunk in stream])


def kill(routed: Behind, worker: CountingWorker, *, comes_back: bool = True) -> None:
    worker.die(comes_back=comes_back)
    routed.router.worker_changed(worker)


async def at_the_worker(routed: Behind) -> tuple[RoutedGeneration, Chunk]:
    """A stream that the worker has begun, and its first chunk."""
    (worker,) = routed.workers
    while True:
        stream = routed.router.generate(ask())
        seen = len(worker.asked)
        first = await anext(stream)
        if len(worker.asked) > seen:
            return stream, first
        await stream.aclose()


async def test_a_workers_stream_goes_on_at_one_of_us_by_tokens() -> None:
    async with behind(counting(), workers=["w"], dialects=["headrace"]) as routed:
        stream, first = await at_the_worker(routed)
        kill(routed, routed.workers[0])
        assert first.text + await rest_of(stream) == counted()
        answered = routed.servers[0].requests[-1].json["answered"]
        assert answered == [{"token_ids": [0], "num_characters": 2, "is_finished": False}]


async def test_and_back_at_a_worker() -> None:
    async with behind(counting(2), workers=["w"], dialects=["headrace"]) as routed:
        stream, first = await at_the_worker(routed)
        kill(routed, routed.workers[0])
        second = await anext(stream)
        routed.workers[0].come_back()
        routed.router.worker_changed(routed.workers[0])
        assert first.text + second.text + await rest_of(stream) == counted()
        resumed = routed.workers[0].asked[-1]
        assert resumed.answered == (Answered([0, 1, 2], 6),)
        assert resumed.was_accepted


async def test_a_workers_stream_goes_on_at_another_server_by_its_text() -> None:
    async def vllm(peer: Peer) -> None:
        await peer.stream(text("and so on", finish_reason="stop"), DONE)

    async with behind(vllm, workers=["w"]) as routed:
        stream, first = await at_the_worker(routed)
        kill(routed, routed.workers[0])
        assert first.text + await rest_of(stream) == "0 and so on"
        body = routed.servers[0].requests[-1].json
        assert (body["prompt"], body["max_tokens"]) == ("Hi0 ", LENGTH - 1)


async def test_what_only_a_text_is_known_of_does_not_go_to_a_worker() -> None:
    async def compatible(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(text("Hello"))
        await asyncio.sleep(0.01)
        peer.abort()

    async with behind(compatible, workers=["w"], dialects=["compatible"]) as routed:
        for _ in range(3):
            stream = routed.router.generate(ask())
            if (await anext(stream)).text == "Hello":
                # The only other server is the one that failed: it is asked again, by text.
                with pytest.raises(HeadraceError, match="upstream up0"):
                    await rest_of_many(stream)
            else:
                await rest_of(stream)
        assert all(not request.answered for request in routed.workers[0].asked)
        assert routed.counts[0] > 1


async def test_an_answer_whose_promised_tokens_never_came_goes_on_by_its_text() -> None:
    async def begin(peer: Peer) -> None:
        if peer.asked.json["prompt"] == "Hi":
            await peer.send(STREAM_HEAD)
            await peer.send_chunk(text("Hello"))
            await asyncio.sleep(0.01)
            peer.abort()
        else:
            await peer.stream(text(" you", finish_reason="stop"), DONE)

    async with behind(begin, begin, dialects=["headrace"] * 2) as routed:
        assert await routed.say() == "Hello you"
        sent = [server.requests[-1].json for server in routed.servers]
        assert {body["prompt"] for body in sent} == {"Hi", "HiHello"}
        assert not any("answered" in body for body in sent)


async def rest_of_many(stream: AsyncIterator[Chunk]) -> None:
    async for chunk in stream:
        assert chunk.text == "Hello"


async def test_tokens_only_keeps_a_stream_among_those_who_know_them() -> None:
    routing = RoutingConfig(strategy="round_robin", migration="tokens")

    async def never(peer: Peer) -> None:
        await peer.stream(text("no", finish_reason="stop"), DONE)

    async with behind(never, workers=["w"], dialects=["vllm"], routing=routing) as routed:
        stream, first = await at_the_worker(routed)
        kill(routed, routed.workers[0])
        waiting = asyncio.create_task(rest_of(stream))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        routed.workers[0].come_back()
        routed.router.worker_changed(routed.workers[0])
        assert first.text + await waiting == counted()


async def test_where_a_request_went_after_a_death_is_remembered() -> None:
    """Who is full is not asked again, though it was asked in place of one that died."""
    elsewhere = Verdict("neutral", "elsewhere")
    async with behind(workers=["a", "b", "c"]) as routed:
        tries = routed.router._tries(RequestKey(), None)
        first = await tries.first()
        second = await tries.after(first, elsewhere)
        assert second is not None
        assert second is not first
        third = await tries.at_once({first.endpoint, second.endpoint})
        assert third is not None
        assert third is not first
        assert await tries.after(third, elsewhere) is second
