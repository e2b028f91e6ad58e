"""Requests and answers that are passed on, by upstreams that do as they should not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NoEndpointError,
    UnsupportedParameterError,
    WorkerDiedError,
)
from headrace.routing.attempts import whole_events
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamUnreachableError,
)
from routing.behind import (
    QUICK,
    behind,
    drop,
    drop_after_the_head,
    gone,
    hang,
    hang_after_the_head,
    passed_on,
)
from routing.upstream.misbehaving_server import DONE, STREAM_HEAD, WHOLE, Peer, event, text

ANSWER = json.dumps({"choices": [{"text": "Hello you"}], "usage": None})
EVENTS = "".join(WHOLE).encode()
IS_STREAM = pytest.mark.parametrize("is_stream", [True, False])


async def good(peer: Peer) -> None:
    if peer.asked.json["stream"]:
        await peer.stream(*WHOLE)
    else:
        await peer.answer(ANSWER)


def whole(*, is_stream: bool) -> bytes:
    return EVENTS if is_stream else ANSWER.encode()


# Before the answer has begun


async def drop_within_an_event(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0][:-2])
    peer.close()


async def no_http(peer: Peer) -> None:
    await peer.send(b"\x16\x03\x01\x02 hello\r\n\r\n")
    peer.close()


async def html(peer: Peer) -> None:
    await peer.answer("<html>\n\n<p>\n\n</html>\n\n", kind="text/html")


async def html_that_says_it_is_right(peer: Peer) -> None:
    kind = "text/event-stream" if peer.asked.json["stream"] else "application/json"
    await peer.answer("<html>\n\n<p></html>", kind=kind)


async def error_in_a_success(peer: Peer) -> None:
    await peer.answer('{"error": {"message": "overloaded", "code": 503}}')


async def error_as_first_event(peer: Peer) -> None:
    if peer.asked.json["stream"]:
        await peer.stream(event(error={"message": "no", "code": 500}), DONE)
    else:
        await peer.answer("{}", "500 Internal Server Error")


async def error_behind_the_first_event(peer: Peer) -> None:
    """In one piece: nothing of it is with the client."""
    if peer.asked.json["stream"]:
        await peer.stream(text("He") + event(error={"message": "no", "code": 500}))
    else:
        await peer.answer("{}", "502 Bad Gateway")


async def a_comment_and_no_more(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(": wait\n\n")
    await asyncio.sleep(0.02)
    peer.close()


async def no_json(peer: Peer) -> None:
    await peer.stream("data: hello\n\n", DONE)


async def empty(peer: Peer) -> None:
    await peer.answer("", kind="text/event-stream")


BAD_BEGINNINGS = [
    hang,
    hang_after_the_head,
    drop,
    drop_after_the_head,
    drop_within_an_event,
    no_http,
    html,
    html_that_says_it_is_right,
    error_in_a_success,
    error_as_first_event,
    error_behind_the_first_event,
    a_comment_and_no_more,
    no_json,
    empty,
]
Bad = Callable[[Peer], Awaitable[None]]


@IS_STREAM
@pytest.mark.parametrize("bad", BAD_BEGINNINGS)
async def test_another_upstream_answers_for_one_that_does_not_begin(
    bad: Bad, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    monkeypatch.setattr("headrace.routing.upstream.upstream.MAX_WHOLE_TIME", 0.1)
    async with behind(bad, bad, good, first_byte_timeout=0.1) as routed:
        for _ in range(3):  # whose turn it is at first is not said
            assert await routed.relay(is_stream=is_stream) == whole(is_stream=is_stream)
            routed.check()
        assert routed.counts[2] == 3
        assert sum(routed.counts) > 3


@IS_STREAM
@pytest.mark.parametrize("bad", BAD_BEGINNINGS)
async def test_what_the_only_upstream_did_is_told(
    bad: Bad, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    monkeypatch.setattr("headrace.routing.upstream.upstream.MAX_WHOLE_TIME", 0.05)
    async with behind(bad, first_byte_timeout=0.05) as routed:
        with pytest.raises(HeadraceError, match="upstream up0: "):
            await routed.relay(is_stream=is_stream)
        is_answer = bad in (error_as_first_event, error_behind_the_first_event)
        assert routed.counts == [1 if is_answer else QUICK.max_tries]


@IS_STREAM
async def test_a_mistake_of_the_client_is_tried_once_and_opens_nothing(*, is_stream: bool) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer('{"error": {"message": "bad"}}', "400 Bad Request")

    async with behind(refuse, refuse) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            with pytest.raises(InvalidRequestError, match="bad"):
                await routed.relay(is_stream=is_stream)
        assert sum(routed.counts) == 2 * QUICK.failure_threshold
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}


@IS_STREAM
async def test_a_request_that_killed_workers_there_kills_no_others(*, is_stream: bool) -> None:
    async def died(peer: Peer) -> None:
        error = {"message": "3 workers", "code": "worker_died"}
        await peer.answer(json.dumps({"error": error}), "500 Internal Server Error")

    async with behind(died, died) as routed:
        with pytest.raises(WorkerDiedError):
            await routed.relay(is_stream=is_stream)
        assert sum(routed.counts) == 1


async def test_a_short_wait_is_kept_and_a_long_one_is_passed_on() -> None:
    waits = iter(["0.01", "60"])

    async def busy(peer: Peer) -> None:
        await peer.answer("{}", "429 Too Many Requests", Retry_After=next(waits))

    async with behind(busy) as routed:
        with pytest.raises(UpstreamBusyError) as refusal:
            await routed.relay(is_stream=True)
        assert (refusal.value.status, refusal.value.retry_after) == (503, 60.0)
        assert routed.counts == [2]
        assert routed.status(0).breaker == "closed"


async def test_another_upstream_takes_at_once_what_one_is_too_busy_for() -> None:
    async def busy(peer: Peer) -> None:
        await peer.answer("{}", "429 Too Many Requests", Retry_After="60")

    async with behind(busy, good) as routed:
        for _ in range(2):
            assert await routed.relay(is_stream=True) == EVENTS
        assert routed.counts == [1, 2]


async def test_a_whole_answer_that_takes_long_is_waited_for_and_opens_nothing() -> None:
    async def think(peer: Peer) -> None:
        await asyncio.sleep(0.2)
        await good(peer)

    async with behind(think, first_byte_timeout=0.05) as routed:
        assert await routed.relay(is_stream=False) == ANSWER.encode()
        assert routed.counts == [1]


@IS_STREAM
async def test_a_body_that_we_cannot_read_is_tried_once_and_opens_nothing(
    *, is_stream: bool
) -> None:
    body = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    asked = passed_on(is_stream=is_stream, body=body)
    async with behind(good, good) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            with pytest.raises(InvalidRequestError, match="nested too deeply"):
                await routed.router.relay(replace(asked, model="another"))
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}
        assert routed.counts == [0, 0]


# Answers that were begun elsewhere


async def test_what_was_answered_goes_to_those_who_can_go_on() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer("{}", "500 Internal Server Error")

    dialects = ["vllm", "headrace", "compatible", "headrace"]
    async with behind(good, good, good, refuse, dialects=dialects) as routed:
        for _ in range(4):
            answer = await routed.router.relay(passed_on(is_stream=False, resumes=True))
            await answer.aclose()
        assert routed.counts[0] == routed.counts[2] == 0
        assert routed.counts[1] == 4


@IS_STREAM
async def test_where_nobody_can_go_on_the_client_is_told(*, is_stream: bool) -> None:
    async with behind(good, good) as routed:
        with pytest.raises(UnsupportedParameterError, match="cannot go on") as refusal:
            await routed.router.relay(passed_on(is_stream=is_stream, resumes=True))
        assert refusal.value.param == "answered"
        assert routed.counts == [0, 0]


# Places for requests


@IS_STREAM
async def test_an_answer_gives_its_place_back(*, is_stream: bool) -> None:
    async with behind(good, max_connections=1) as routed:
        for _ in range(3):
            assert await routed.relay(is_stream=is_stream) == whole(is_stream=is_stream)
            routed.check()
        assert routed.servers[0].num_connections == 1


async def test_a_whole_answers_place_is_free_before_anybody_reads_it() -> None:
    async with behind(good, max_connections=1) as routed:
        first = await routed.router.relay(passed_on(is_stream=False))
        assert await routed.relay(is_stream=False) == ANSWER.encode()
        await first.aclose()


# In the middle


async def begin(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    await asyncio.sleep(0.02)


async def begin_and_hang(peer: Peer) -> None:
    await begin(peer)
    await peer.gone()


async def begin_and_drop(peer: Peer) -> None:
    await begin(peer)
    await peer.send_chunk(WHOLE[1][:9])
    peer.abort()


async def begin_and_end_without_done(peer: Peer) -> None:
    await begin(peer)
    await peer.send_chunk(WHOLE[1])
    await peer.send_chunk("")


async def begin_and_fail(peer: Peer) -> None:
    await begin(peer)
    await peer.send_chunk(text(" you") + event(error={"message": "oom", "code": 500}) + DONE)
    await peer.send_chunk("")


@pytest.mark.parametrize(
    ("bad", "kind", "got"),
    [
        (begin_and_hang, UpstreamUnreachableError, WHOLE[0]),
        (begin_and_drop, UpstreamBrokenError, WHOLE[0]),
        (begin_and_end_without_done, UpstreamBrokenError, WHOLE[0] + WHOLE[1]),
        (begin_and_fail, UpstreamFaultError, WHOLE[0] + text(" you")),
    ],
)
async def test_a_stream_that_fails_raises_after_whole_events_only(
    bad: Bad, kind: type[HeadraceError], got: str
) -> None:
    async with behind(bad, bad, idle_timeout=0.1) as routed:
        pieces: list[bytes] = []
        with pytest.raises(kind):
            await routed.relay_into(pieces, is_stream=True)
        assert b"".join(pieces) == got.encode()
        assert sum(routed.counts) == 1, "what has begun is not begun again"
        routed.check()


async def test_what_breaks_off_in_the_middle_opens_the_breaker() -> None:
    async with behind(begin_and_drop) as routed:
        for _ in range(QUICK.failure_threshold):
            with pytest.raises(UpstreamBrokenError):
                await routed.relay(is_stream=True)
        with pytest.raises(NoEndpointError) as refusal:
            await routed.relay(is_stream=True)
        assert routed.status(0).breaker == "open"
        assert routed.status(0).reason is not None
        assert refusal.value.retry_after is not None
        assert 1.0 <= refusal.value.retry_after <= 1.2 * QUICK.open_time


async def test_a_stream_may_come_byte_by_byte() -> None:
    async def drip(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for byte in EVENTS:
            await peer.send_chunk(bytes([byte]))
        await peer.send_chunk("")

    async with behind(drip) as routed:
        assert await routed.relay(is_stream=True) == EVENTS


@pytest.mark.parametrize("more", [text("more"), ": ping\n\n", "data: cut"])
async def test_what_comes_after_the_end_does_no_harm(more: str) -> None:
    async def go_on(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk("".join(WHOLE) + more)
        await peer.send_chunk(more)
        await peer.send_chunk("")

    async with behind(go_on) as routed:
        assert await routed.relay(is_stream=True) == EVENTS
        assert routed.status(0).breaker == "closed"


async def test_an_event_without_an_end_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_events, "MAX_EVENT_BYTES", 10_000)

    async def endless(peer: Peer) -> None:
        await begin(peer)
        for _ in range(100):
            await peer.send_chunk("x" * 1000)
        await peer.gone()

    async with behind(endless) as routed:
        pieces: list[bytes] = []
        with pytest.raises(UpstreamBrokenError, match="10000 bytes"):
            await routed.relay_into(pieces, is_stream=True)
        assert b"".join(pieces) == WHOLE[0].encode()
        await gone(*routed.servers)


# Deadlines and clients who leave


@IS_STREAM
@pytest.mark.parametrize("bad", [hang, hang_after_the_head, begin_and_hang])
async def test_a_deadline_ends_it_wherever_it_is(bad: Bad, *, is_stream: bool) -> None:
    async with behind(bad, bad) as routed:
        with pytest.raises(DeadlineError):
            await routed.relay(is_stream=is_stream, within=0.1)
        assert sum(routed.counts) == 1
        assert {status.breaker for status in routed.router.statuses()} == {"closed"}


@pytest.mark.parametrize(
    ("bad", "is_stream", "breaker"),
    [
        (hang, True, "open"),
        (hang_after_the_head, True, "open"),
        (begin_and_hang, True, "closed"),
        (hang, False, "closed"),  # it may be at work on the whole of it
    ],
)
async def test_a_stream_that_has_not_begun_long_before_its_deadline_is_a_failure(
    bad: Bad, breaker: str, *, is_stream: bool
) -> None:
    policy = replace(QUICK, hang_time=0.1)
    async with behind(bad, policy=policy) as routed:
        relays = [
            routed.relay(is_stream=is_stream, within=0.3) for _ in range(policy.failure_threshold)
        ]
        ends = await asyncio.gather(*relays, return_exceptions=True)
        assert {type(end) for end in ends} == {DeadlineError}
        assert routed.status(0).breaker == breaker


@pytest.mark.parametrize("bad", [hang, hang_after_the_head, begin_and_hang])
async def test_a_client_who_leaves_costs_the_upstream_its_connection(bad: Bad) -> None:
    async with behind(bad) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            relaying = asyncio.create_task(routed.relay(is_stream=True))
            await asyncio.sleep(0.005)
            relaying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await relaying
            routed.check()
        await gone(*routed.servers)
        assert routed.status(0).breaker == "closed"


async def test_a_client_who_leaves_between_two_events_ends_it() -> None:
    async with behind(begin_and_hang) as routed:
        answer = await routed.router.relay(passed_on(is_stream=True))
        assert not await answer.forward(lambda _: False)
        await answer.aclose()
        await answer.aclose()
        routed.check()
        assert await answer.forward(lambda _: True)
        await gone(*routed.servers)


@pytest.mark.parametrize("piece_number", [1, 2])
async def test_a_fault_of_the_taker_is_not_the_upstreams(piece_number: int) -> None:
    async def slowly(peer: Peer) -> None:
        await begin(peer)
        await peer.send_chunk("".join(WHOLE[1:]))
        await peer.send_chunk("")

    async with behind(slowly) as routed:
        for _ in range(2 * QUICK.failure_threshold):
            taken: list[bytes] = []

            def take(piece: bytes, taken: list[bytes] = taken) -> bool:
                taken.append(piece)
                if len(taken) == piece_number:
                    raise BrokenPipeError
                return True

            answer = await routed.router.relay(passed_on(is_stream=True))
            with pytest.raises(BrokenPipeError):
                await answer.forward(take)
            routed.check()
        assert routed.status(0).breaker == "closed"


async def test_a_taker_may_pause_at_every_piece() -> None:
    async def slowly(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for each in WHOLE:
            await peer.send_chunk(each)
            await asyncio.sleep(0.001)
        await peer.send_chunk("")

    async with behind(slowly) as routed:
        answer = await routed.router.relay(passed_on(is_stream=True))
        got: list[bytes] = []
        while not await answer.forward(got.append):  # type: ignore[arg-type]
            pass
        assert b"".join(got) == EVENTS


# Everything fails


@IS_STREAM
async def test_retries_stay_within_the_budget_when_everything_fails(*, is_stream: bool) -> None:
    async def fail(peer: Peer) -> None:
        await peer.answer("{}", "503 Service Unavailable")  # no breaker helps

    async with behind(fail, fail) as routed:
        num_requests = 400
        relays = [routed.relay(is_stream=is_stream) for _ in range(num_requests)]
        ends = await asyncio.gather(*relays, return_exceptions=True)
        assert {type(end) for end in ends} == {UpstreamBusyError}
        floor = QUICK.retry_floor * QUICK.retry_window
        assert num_requests < sum(routed.counts) <= num_requests * (1 + QUICK.retry_share) + floor
