"""A router in front of servers that do as their scripts say, and what it must leave behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from counting_worker import CountingWorker
from headrace.endpoints import EndpointStatus, RelayRequest, RoutingConfig, UpstreamConfig
from headrace.generation import GenerationRequest, Prompt, SamplingParams
from headrace.routing.policy import RoutingPolicy
from headrace.routing.router import VersionRouter
from routing.upstream.misbehaving_server import STREAM_HEAD, MisbehavingServer, Peer, Script

BODY = b'{"model": "m", "prompt": "Hi", "stream": %s}'
QUICK = RoutingPolicy(retry_delay=0.001, max_retry_delay=0.002, slow_start_time=0.0)


class Behind:
    """The router and the servers behind it, in the order in which they were named."""

    def __init__(
        self,
        router: VersionRouter,
        servers: Sequence[MisbehavingServer],
        workers: Sequence[CountingWorker],
    ) -> None:
        self.router = router
        self.servers = servers
        self.workers = workers

    @property
    def counts(self) -> list[int]:
        """How many requests for answers each server has seen."""
        return [sum(asked.method == "POST" for asked in server.requests) for server in self.servers]

    def status(self, number: int) -> EndpointStatus:
        return next(each for each in self.router.statuses() if each.name == f"up{number}")

    async def say(self, prompt: Prompt = "Hi", **fields: Any) -> str:
        stream = self.router.generate(ask(prompt, **fields))
        return "".join([chunk.text async for chunk in stream])

    async def relay(self, *, is_stream: bool, within: float | None = None) -> bytes:
        """All that a client would get."""
        got: list[bytes] = []
        await self.relay_into(got, is_stream=is_stream, within=within)
        return b"".join(got)

    async def relay_into(
        self, got: list[bytes], *, is_stream: bool, within: float | None = None
    ) -> None:
        answer = await self.router.relay(passed_on(is_stream=is_stream, within=within))
        try:
            while not await answer.forward(lambda piece: not got.append(piece)):  # type: ignore[func-returns-value]
                pass
        finally:
            await answer.aclose()

    def check(self) -> None:
        """Nothing is in flight: neither counted, nor with an upstream."""
        self.router._places.members.check(time.monotonic())
        for status in self.router.statuses():
            assert (status.num_in_flight, status.tokens_in_flight) == (0, 0)
        for place in self.router._upstreams:
            assert place.upstream._connection._num_open == 0
            assert not place.upstream._connection._bodies
        assert not self.router._places.trial.locked()
        assert all(worker.num_running == 0 for worker in self.workers)


@asynccontextmanager
async def behind(
    *scripts: Script,
    workers: Sequence[str] = (),
    policy: RoutingPolicy = QUICK,
    dialects: Sequence[str] = (),
    routing: RoutingConfig | None = None,
    **options: Any,
) -> AsyncIterator[Behind]:
    """In turn, the first one first. Nobody is probed until the router is started."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(MisbehavingServer(each)) for each in scripts]
        configs = [
            UpstreamConfig(
                url=server.url,
                name=f"up{number}",
                model="m",
                dialect=dialects[number] if dialects else "vllm",  # type: ignore[arg-type]
                **options,
            )
            for number, server in enumerate(servers)
        ]
        counting = [CountingWorker(name) for name in workers]
        routing = routing or RoutingConfig(strategy="round_robin")
        router = VersionRouter("chat@2", routing, counting, configs, policy=policy)
        made = Behind(router, servers, counting)
        yield made
        await router._prober.close()
        made.check()
        await router.close()


def ask(
    prompt: Prompt = "Hi", *, within: float | None = None, request_id: str = "r", **fields: Any
) -> GenerationRequest:
    sampling = {"max_tokens": 6, "temperature": 0.0, **fields.pop("sampling", {})}
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=SamplingParams(**sampling),
        deadline=None if within is None else time.monotonic() + within,
        **fields,
    )


def passed_on(
    *, is_stream: bool, within: float | None = None, body: bytes | None = None, **fields: Any
) -> RelayRequest:
    return RelayRequest(
        path="completions",
        body=body or BODY % (b"true" if is_stream else b"false"),
        model="m",
        request_id="r",
        is_stream=is_stream,
        deadline=None if within is None else time.monotonic() + within,
        **fields,
    )


async def gone(*servers: MisbehavingServer) -> None:
    """Until each of them has seen somebody leave."""
    await asyncio.wait_for(asyncio.gather(*(each.someone_left.wait() for each in servers)), 10)


async def healthy(peer: Peer) -> bool:
    """Answer a probe; whether it was one."""
    if peer.asked.method == "GET":
        await peer.answer('{"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}')
        return True
    return False


# What a server may do before its answer has begun


async def hang(peer: Peer) -> None:
    await peer.gone()


async def hang_after_the_head(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.gone()


async def drop(peer: Peer) -> None:
    peer.abort()


async def drop_after_the_head(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    peer.close()
