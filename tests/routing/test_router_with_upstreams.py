"""Answers through a router whose upstreams do as they should not."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from counting_worker import counted
from headrace.endpoints import RoutingConfig
from headrace.errors import (
    ContextLengthError,
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NoEndpointError,
    WorkerDiedError,
)
from headrace.generation import Answered, Chat, Chunk, Message
from headrace.routing.policy import RoutingPolicy
from headrace.routing.upstream.errors import (
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamUnreachableError,
)
from routing.behind import (
    QUICK,
    ask,
    behind,
    drop,
    drop_after_the_head,
    gone,
    hang,
    hang_after_the_head,
    healthy,
)
from routing.upstream.misbehaving_server import (
    DONE,
    STREAM_HEAD,
    WHOLE,
    Peer,
    event,
    text,
    usage,
)

SAID = "Hello you"
Bad = Callable[[Peer], Awaitable[None]]


async def good(peer: Peer) -> None:
    await peer.stream(*WHOLE)


# Before the answer has begun


async def no_http(peer: Peer) -> None:
    await peer.send(b"\x00\x01 hello\r\n\r\n")
    peer.close()


async def html(peer: Peer) -> None:
    await peer.answer("<html></html>\n\n", kind="text/html")


async def no_json(peer: Peer) -> None:
    await peer.stream("data: hello\n\n", DONE)


async def fail(peer: Peer) -> None:
    await peer.answer("{}", "500 Internal Server Error")


async def error_as_first_event(peer: Peer) -> None:
    await peer.stream(event(error={"message": "no", "code": 500}), DONE)


@pytest.mark.parametrize(
    "bad",
    [
        hang,
        hang_after_the_head,
        drop,
        drop_after_the_head,
        no_http,
        html,
        no_json,
        fail,
        error_as_first_event,
    ],
)
async def test_another_upstream_answers_for_one_that_does_not_begin(bad: Bad) -> None:
    async with behind(bad, bad, good, first_byte_timeout=0.1) as routed:
        for _ in range(3):
            assert await routed.say() == SAID
            routed.check()
        assert routed.counts[2] == 3
        assert sum(routed.counts) > 3
    async with behind(bad, first_byte_timeout=0.05) as alone:
        with pytest.raises(HeadraceError, match="upstream up0: "):
            await alone.say()
        is_answer = bad in (fail, error_as_first_event)  # which would be the same again
        assert alone.counts == [1 if is_answer else QUICK.max_tries]


@pytest.mark.parametrize(
    ("message", "kind"),
    [("bad", InvalidRequestError), ("maximum context length is 9", ContextLengthError)],
)
async def test_a_mistake_of_the_client_is_tried_once_and_opens_nothing(
    message: str, kind: type[HeadraceError]
) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer(json.dumps({"error": {"message": message}}), "400 Bad Request")

    async with behind(refuse, refuse) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            with pytest.raises(kind):
                await routed.say()
        assert sum(routed.counts) == 2 * QUICK.failure_threshold
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}


async def test_a_request_that_killed_workers_there_kills_no_others() -> None:
    async def died(peer: Peer) -> None:
        error = {"message": "3 workers", "code": "worker_died"}
        await peer.answer(json.dumps({"error": error}), "500 Internal Server Error")

    async with behind(died, died, workers=["w"]) as routed:
        ends = [await died_of(routed.say()) for _ in range(3)]
        assert ends.count(True) == sum(routed.counts) >= 1
        assert ends.count(False) == len(routed.workers[0].asked)


async def died_of(answer: Awaitable[str]) -> bool:
    try:
        await answer
    except WorkerDiedError:
        return True
    return False


async def test_a_short_wait_is_kept_and_a_long_one_is_passed_on() -> None:
    waits = iter(["0.01", "60"])

    async def busy(peer: Peer) -> None:
        await peer.answer("{}", "429 Too Many Requests", Retry_After=next(waits))

    async with behind(busy) as routed:
        with pytest.raises(UpstreamBusyError) as refusal:
            await routed.say()
        assert (refusal.value.status, refusal.value.retry_after) == (503, 60.0)
        assert routed.counts == [2]
        assert routed.status(0).breaker == "closed"


# In the middle


async def begin_and_drop(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(text("Hello", token_ids=[7]))
    await asyncio.sleep(0.02)
    peer.abort()


async def begin_and_hang(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(text("Hello", token_ids=[7]))
    await peer.gone()


async def begin_and_fail(peer: Peer) -> None:
    error = event(error={"message": "oom", "code": 500})
    await peer.stream(text("Hello", token_ids=[7]) + error)


async def go_on(peer: Peer) -> None:
    """End an answer that was begun elsewhere."""
    await peer.stream(text(" you", finish_reason="stop", token_ids=[8]), usage(3, 1), DONE)


def begun_there(bad: Bad) -> Bad:
    """Begin badly what is new, and go on with the rest."""

    async def serve(peer: Peer) -> None:
        body = peer.asked.json
        is_new = "answered" not in body and body.get("prompt") == "Hi"
        await (bad if is_new else go_on)(peer)

    return serve


@pytest.mark.parametrize("bad", [begin_and_drop, begin_and_hang, begin_and_fail])
@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp", "openai", "compatible"])
async def test_a_completion_goes_on_elsewhere_by_its_text(bad: Bad, dialect: str) -> None:
    serve = begun_there(bad)
    options = {"dialects": [dialect] * 2, "idle_timeout": 0.1}
    async with behind(serve, serve, **options) as routed:  # type: ignore[arg-type]
        assert await routed.say() == SAID
        prompts = [asked.json["prompt"] for server in routed.servers for asked in server.requests]
        assert sorted(prompts) == ["Hi", "HiHello"]
        limits = [
            asked.json["max_tokens"] for server in routed.servers for asked in server.requests
        ]
        assert sorted(limits) == [5, 6], "of a known number of tokens one is gone"


@pytest.mark.parametrize("bad", [begin_and_drop, begin_and_hang, begin_and_fail])
async def test_an_answer_goes_on_elsewhere_by_its_tokens(bad: Bad) -> None:
    serve = begun_there(bad)
    async with behind(serve, serve, dialects=["headrace"] * 2, idle_timeout=0.1) as routed:
        assert await routed.say() == SAID
        bodies = [asked.json for server in routed.servers for asked in server.requests]
        (resumed,) = [body for body in bodies if "answered" in body]
        assert resumed["answered"] == [
            {"token_ids": [7], "num_characters": 5, "is_finished": False}
        ]


async def test_a_chat_goes_on_by_its_text_only_where_that_can_be_said() -> None:
    async def serve(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        if peer.asked.json["messages"][-1]["role"] == "user":
            await peer.send_chunk(event(choices=[{"index": 0, "delta": {"content": "Hello"}}]))
            await asyncio.sleep(0.02)
            peer.abort()
        end = {"index": 0, "delta": {"content": " you"}, "finish_reason": "stop"}
        await peer.send_chunk(event(choices=[end]) + DONE)
        await peer.send_chunk("")

    chat = Chat((Message("user", "Hi"),))
    for dialect in ("vllm", "llama.cpp"):
        async with behind(serve, serve, dialects=[dialect] * 2) as routed:
            assert await routed.say(chat) == SAID
    async with behind(serve, serve, dialects=["openai"] * 2) as routed:
        with pytest.raises(HeadraceError, match="upstream up"):
            await routed.say(chat)
        assert sum(routed.counts) == 1


@pytest.mark.parametrize(("migration", "dialect"), [("off", "headrace"), ("tokens", "vllm")])
async def test_nothing_goes_on_where_that_is_not_allowed(migration: str, dialect: str) -> None:
    serve = begun_there(begin_and_drop)
    routing = RoutingConfig(strategy="round_robin", migration=migration)  # type: ignore[arg-type]
    async with behind(serve, serve, dialects=[dialect] * 2, routing=routing) as routed:
        stream = routed.router.generate(ask())
        assert (await anext(stream)).text == "Hello"
        with pytest.raises(HeadraceError, match="upstream up"):
            await anext(stream)
        assert sum(routed.counts) == 1


async def refuse_us(peer: Peer) -> None:
    await peer.answer('{"error": {"message": "wrong key"}}', "401 Unauthorized")


async def test_an_upstream_that_refuses_us_is_left_to_its_breaker() -> None:
    async with behind(refuse_us, good, dialects=["openai"] * 2) as routed:
        for _ in range(40):
            assert await routed.say() == SAID
        assert routed.counts[0] == QUICK.failure_threshold
        assert routed.status(0).breaker == "open"


async def test_what_others_began_is_taken_where_migration_is_off() -> None:
    routing = RoutingConfig(strategy="round_robin", migration="off")
    async with behind(go_on, dialects=["headrace"], routing=routing) as routed:
        assert await routed.say(answered=(Answered([7], 5),)) == " you"


async def test_what_others_began_is_retried_only_where_it_can_go_on() -> None:
    dialects = ["headrace", "vllm", "headrace"]
    async with behind(fail, good, go_on, dialects=dialects) as routed:
        for _ in range(3):
            assert await routed.say(answered=(Answered([7], 5),)) == " you"
        assert routed.counts[0] >= 1
        assert routed.counts[1] == 0


async def test_an_answer_moves_until_it_is_whole() -> None:
    """Every try brings a token, and then fails."""

    async def one_token(peer: Peer) -> None:
        body = peer.asked.json
        number = len(body["answered"][0]["token_ids"]) if "answered" in body else 0
        if number == 4:
            await peer.stream(text("4", finish_reason="length", token_ids=[4]), DONE)
            return
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(text(str(number), token_ids=[number]))
        await asyncio.sleep(0.01)
        peer.abort()

    async with behind(one_token, one_token, dialects=["headrace"] * 2) as routed:
        assert await routed.say() == "01234"


async def test_streams_that_upstreams_lose_do_not_wait_for_each_other() -> None:
    """Only what kills workers is tried on its own."""
    num_streams = 4
    together = asyncio.Barrier(num_streams)

    async def serve(peer: Peer) -> None:
        tries = tried[peer.asked.headers["x-request-id"]]
        tries.append(1)
        if len(tries) == 1:
            await begin_and_drop(peer)
        elif len(tries) < 4:
            peer.abort()
        else:
            await together.wait()
            await go_on(peer)

    tried: dict[str, list[int]] = {f"r{number}": [] for number in range(num_streams)}
    async with behind(serve, serve, dialects=["headrace"] * 2, first_byte_timeout=5) as routed:
        streams = [collect(routed.router.generate(ask(request_id=name))) for name in tried]
        assert await asyncio.wait_for(asyncio.gather(*streams), 4) == [SAID] * num_streams


# Breakers, and coming back


async def test_a_breaker_opens_lets_a_few_through_and_closes() -> None:
    policy = RoutingPolicy(
        retry_delay=0.001, max_retry_delay=0.002, open_time=0.1, slow_start_time=0.0, max_tries=1
    )
    async with behind(fail, policy=policy) as routed:
        (server,) = routed.servers
        for _ in range(policy.failure_threshold):
            with pytest.raises(UpstreamFaultError):
                await routed.say()
        assert (routed.status(0).breaker, routed.status(0).is_taking) == ("open", False)
        with pytest.raises(NoEndpointError) as refusal:
            await routed.say()
        assert refusal.value.retry_after == policy.min_retry_after
        assert routed.counts == [policy.failure_threshold]

        gate = asyncio.Event()

        async def wait_and_answer(peer: Peer) -> None:
            await gate.wait()
            await good(peer)

        server.script = wait_and_answer
        await until(lambda: routed.router.is_answering)
        assert routed.status(0).breaker == "half_open"
        trials = [asyncio.create_task(routed.say()) for _ in range(policy.max_half_open)]
        await asyncio.sleep(0.01)
        with pytest.raises(NoEndpointError):
            await routed.say()
        gate.set()
        assert await asyncio.gather(*trials) == [SAID] * policy.max_half_open
        assert routed.status(0).breaker == "closed"


async def test_an_upstream_that_comes_back_is_asked_again_after_its_probes() -> None:
    policy = RoutingPolicy(
        retry_delay=0.001, max_retry_delay=0.002, probe_interval=0.02, suspect_probe_interval=0.02
    )

    async def serve(peer: Peer) -> None:
        if not await healthy(peer):
            await good(peer)

    async with behind(serve, serve, policy=policy) as routed:
        await routed.router.start()
        await routed.servers[0].stop()
        await until(lambda: not routed.status(0).is_taking)
        assert routed.status(0).reason is not None
        assert await routed.say() == SAID
        await routed.servers[0].start()
        await until(lambda: routed.status(0).is_taking)
        assert routed.status(0).weight < 1.0, "it starts slowly"
        assert routed.status(0).reason is None
        seen = routed.counts[0]
        for _ in range(50):
            assert await routed.say() == SAID
        assert routed.counts[0] > seen


async def test_an_upstream_may_start_after_its_router() -> None:
    async def serve(peer: Peer) -> None:
        if not await healthy(peer):
            await good(peer)

    policy = RoutingPolicy(probe_interval=0.02, suspect_probe_interval=0.02)
    async with behind(serve, policy=policy) as routed:
        await routed.servers[0].stop()
        starting = asyncio.create_task(routed.router.start())
        await until(lambda: routed.status(0).reason is not None)
        assert not starting.done()
        await routed.servers[0].start()
        await starting
        assert routed.router.is_answering
        assert await routed.say() == SAID


async def test_all_out_is_told_with_when_to_come_again() -> None:
    async with behind(hang, hang, probe_timeout=0.05) as routed:
        starting = asyncio.create_task(routed.router.start())
        await until(lambda: not routed.router.is_answering)
        for answer in (routed.say(), routed.relay(is_stream=True)):
            with pytest.raises(NoEndpointError, match="chat@2") as refusal:
                await answer
            assert refusal.value.retry_after is not None
            assert 1.0 <= refusal.value.retry_after <= 2.5 * QUICK.suspect_probe_interval
        assert not starting.done()
        starting.cancel()


# Deadlines and clients who leave


@pytest.mark.parametrize("bad", [hang, hang_after_the_head, begin_and_hang])
async def test_a_deadline_ends_it_wherever_it_is(bad: Bad) -> None:
    async with behind(bad, bad) as routed:
        with pytest.raises(DeadlineError):
            await routed.say(within=0.1)
        assert sum(routed.counts) == 1
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}


async def test_a_deadline_leaves_no_time_for_a_wait() -> None:
    async def busy(peer: Peer) -> None:
        await peer.answer("{}", "503 Service Unavailable", Retry_After="1")

    async with behind(busy) as routed:
        with pytest.raises(UpstreamBusyError):
            await routed.say(within=0.5)
        assert routed.counts == [1]


@pytest.mark.parametrize("bad", [hang, hang_after_the_head, begin_and_hang])
async def test_a_client_who_leaves_costs_the_upstream_its_connection(bad: Bad) -> None:
    async with behind(bad) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            asking = asyncio.create_task(routed.say())
            await asyncio.sleep(0.005)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            routed.check()
        await gone(*routed.servers)
        assert routed.status(0).breaker == "closed"


async def test_a_client_may_leave_between_two_tries() -> None:
    policy = RoutingPolicy(retry_delay=60.0)
    async with behind(drop, policy=policy) as routed:
        asking = asyncio.create_task(routed.say())
        await until(lambda: sum(routed.counts) == 1)
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        routed.check()


# Everything fails


async def test_retries_stay_within_the_budget_when_everything_fails() -> None:
    async def busy(peer: Peer) -> None:
        await peer.answer("{}", "503 Service Unavailable")  # no breaker helps

    async with behind(busy, busy) as routed:
        num_requests = 400
        ends = await asyncio.gather(
            *(routed.say() for _ in range(num_requests)), return_exceptions=True
        )
        assert {type(end) for end in ends} == {UpstreamBusyError}
        floor = QUICK.retry_floor * QUICK.retry_window
        assert num_requests < sum(routed.counts) <= num_requests * (1 + QUICK.retry_share) + floor


async def test_the_first_word_after_a_move_is_what_an_upstreams_latency_counts() -> None:
    async def slow_end(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(text(" a"))
        await asyncio.sleep(0.3)
        await peer.send_chunk(text(" b", finish_reason="stop") + DONE)
        await peer.send_chunk("")

    def serve(peer: Peer) -> Awaitable[None]:
        return (begin_and_drop if peer.asked.json["prompt"] == "Hi" else slow_end)(peer)

    async with behind(serve, serve) as routed:
        assert await routed.say() == "Hello a b"
        latencies = [status.latency for status in routed.router.statuses()]
        assert all(latency is not None and latency < 0.3 for latency in latencies)


async def test_silence_is_told_as_silence() -> None:
    async with behind(hang, first_byte_timeout=0.03) as routed:
        with pytest.raises(UpstreamUnreachableError, match="does not answer in time"):
            await routed.say(within=30.0)


async def collect(stream: object) -> str:
    return "".join([chunk.text async for chunk in stream])  # type: ignore[attr-defined]


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)


async def test_upstreams_that_hang_are_left_alone_though_deadlines_end_every_request() -> None:
    policy = replace(QUICK, hang_time=0.1)
    async with behind(hang, policy=policy) as routed:
        says = [routed.say(within=0.3) for _ in range(policy.failure_threshold)]
        ends = await asyncio.gather(*says, return_exceptions=True)
        assert {type(end) for end in ends} == {DeadlineError}
        assert routed.counts == [policy.failure_threshold]
        assert routed.status(0).breaker == "open"


async def test_a_stream_rather_waits_for_its_worker_than_ask_what_has_just_failed() -> None:
    async with behind(drop, workers=["w"], dialects=["headrace"]) as routed:
        (worker,) = routed.workers
        stream = routed.router.generate(ask())
        begun = await anext(stream)  # of the worker: the upstream begins nothing
        worker.die()
        routed.router.worker_changed(worker)
        rest = asyncio.create_task(_collect(stream))
        await asyncio.sleep(0.05)
        worker.come_back()
        routed.router.worker_changed(worker)
        assert begun.text + await rest == counted()


async def _collect(stream: AsyncIterator[Chunk]) -> str:
    return "".join([chunk.text async for chunk in stream])
