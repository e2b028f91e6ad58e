"""Requests and answers that go on as they came."""

import asyncio
import time

import pytest

from headrace.errors import DeadlineError, HeadraceError
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)
from headrace.routing.upstream.relay import UpstreamRelay
from headrace.routing.upstream.upstream import Upstream
from routing.upstream.conftest import KEY, Start
from routing.upstream.misbehaving_server import STREAM_HEAD, WHOLE, Peer

BODY = b'{"model": "m",  "spaced": true}'
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def relay(
    upstream: Upstream, within: float | None = None, *, is_stream: bool = True
) -> UpstreamRelay:
    deadline = None if within is None else time.monotonic() + within
    trace = {"traceparent": PARENT}
    return await upstream.relay(
        "chat/completions",
        BODY,
        is_stream=is_stream,
        deadline=deadline,
        request_id="r1",
        trace=trace,
    )


async def forwarded(answer: UpstreamRelay) -> bytes:
    got: list[bytes] = []
    while not await answer.forward(lambda piece: got.append(piece) is None):
        pass
    return b"".join(got)


async def stream(peer: Peer) -> None:
    await peer.stream(*WHOLE)


async def hang_in_the_middle(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    await peer.gone()


async def test_bytes_go_and_come_as_they_are(start: Start) -> None:
    upstream, server = await start(stream)
    for _ in range(2):
        answer = await relay(upstream, within=50.0)
        assert answer.content_type == "text/event-stream"
        assert await forwarded(answer) == "".join(WHOLE).encode()
        assert answer.is_over
        await answer.aclose()
    asked = server.requests[0]
    assert (asked.path, asked.body) == ("/v1/chat/completions", BODY)
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["x-request-id"] == "r1"
    assert asked.headers["traceparent"] == PARENT
    assert 0 < float(asked.headers["x-request-timeout"]) <= 50
    assert server.num_connections == 1


async def test_a_whole_answer_comes_with_its_type(start: Start) -> None:
    async def answer_whole(peer: Peer) -> None:
        await peer.answer('{"choices": []}', kind="application/json; charset=utf-8")

    upstream, _ = await start(answer_whole)
    answer = await relay(upstream)
    assert answer.content_type == "application/json"
    assert await forwarded(answer) == b'{"choices": []}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("429 Too Many Requests", UpstreamBusyError),
        ("401 Unauthorized", UpstreamRefusedError),
        ("302 Found", UpstreamRefusedError),
    ],
)
async def test_a_refusal_is_the_same_error_as_of_a_generation(
    start: Start, status: str, kind: type[HeadraceError]
) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer('{"error": {"message": "no"}}', status, Retry_After="7")

    upstream, _ = await start(refuse)
    with pytest.raises(HeadraceError, match="upstream up: ") as caught:
        await relay(upstream)
    assert type(caught.value) is kind


async def test_an_answer_that_breaks_off_is_no_whole_one(start: Start) -> None:
    async def drop(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(WHOLE[0])
        peer.close()

    upstream, _ = await start(drop)
    answer = await relay(upstream)
    with pytest.raises(UpstreamBrokenError, match="upstream up: its answer broke off"):
        await forwarded(answer)
    assert not answer.is_over


async def test_silence_ends_it(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle, idle_timeout=0.05)
    with pytest.raises(UpstreamUnreachableError, match="does not answer in time"):
        await forwarded(await relay(upstream))
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_body_that_does_not_begin_ends_it(start: Start) -> None:
    async def hang_after_the_head(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.gone()

    upstream, server = await start(hang_after_the_head, first_byte_timeout=0.05)
    with pytest.raises(UpstreamUnreachableError, match="does not answer in time"):
        await forwarded(await relay(upstream))
    await asyncio.wait_for(server.someone_left.wait(), 10)


@pytest.mark.parametrize("within", [None, 50.0])
async def test_a_whole_answer_may_begin_late(start: Start, within: float | None) -> None:
    async def think(peer: Peer) -> None:
        await asyncio.sleep(0.2)
        await peer.answer('{"choices": []}')

    upstream, _ = await start(think, first_byte_timeout=0.05)
    answer = await relay(upstream, within, is_stream=False)
    assert await forwarded(answer) == b'{"choices": []}'


@pytest.mark.parametrize(
    ("within", "kind"), [(None, UpstreamUnreachableError), (0.1, DeadlineError)]
)
async def test_a_whole_answer_is_not_waited_for_for_ever(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    within: float | None,
    kind: type[HeadraceError],
) -> None:
    async def hang(peer: Peer) -> None:
        await peer.gone()

    monkeypatch.setattr("headrace.routing.upstream.upstream.MAX_WHOLE_TIME", 0.1)
    upstream, server = await start(hang)
    with pytest.raises(kind):
        await relay(upstream, within, is_stream=False)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_stream_that_speaks_now_and_then_is_not_silent(start: Start) -> None:
    async def dawdle(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for byte in b"hello":
            await peer.send_chunk(bytes([byte]))
            await asyncio.sleep(0.1)
        await peer.send_chunk("")

    upstream, _ = await start(dawdle, idle_timeout=0.3)
    assert await forwarded(await relay(upstream)) == b"hello"


async def test_a_deadline_ends_it(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle)
    answer = await relay(upstream, within=0.1)
    with pytest.raises(DeadlineError):
        await forwarded(answer)
    with pytest.raises(DeadlineError):
        await forwarded(answer)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_deadline_ends_it_while_nobody_takes(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle)
    answer = await relay(upstream, within=0.2)
    assert not await answer.forward(lambda _: False)
    await asyncio.wait_for(server.someone_left.wait(), 10)
    with pytest.raises(DeadlineError):
        await forwarded(answer)


async def test_a_taker_that_fails_aborts_it(start: Start) -> None:
    def fail(_: bytes) -> bool:
        raise ZeroDivisionError

    upstream, server = await start(hang_in_the_middle)
    answer = await relay(upstream)
    with pytest.raises(ZeroDivisionError):
        await answer.forward(fail)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_closing_it_early_aborts_it_and_gives_its_place_back(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle, max_connections=1)
    answer = await relay(upstream)
    assert not await answer.forward(lambda _: False)
    await answer.aclose()
    await answer.aclose()
    await asyncio.wait_for(server.someone_left.wait(), 10)
    server.script = stream
    assert await forwarded(await relay(upstream)) == "".join(WHOLE).encode()


async def test_what_is_finished_before_its_end_keeps_its_connection(start: Start) -> None:
    go_on = asyncio.Event()

    async def end_late(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk("".join(WHOLE))
        await go_on.wait()
        await peer.send_chunk("")

    upstream, server = await start(end_late)
    answer = await relay(upstream)
    assert not await answer.forward(lambda _: False)
    assert not answer.is_over
    answer.finish()
    go_on.set()
    async with asyncio.timeout(10):
        while not answer.is_over:  # noqa: ASYNC110  # an answer that nobody reads has no event
            await asyncio.sleep(0.001)
    assert await forwarded(await relay(upstream)) == "".join(WHOLE).encode()
    assert server.num_connections == 1


async def test_nothing_is_asked_of_it_but_what_is_passed_on(start: Start) -> None:
    upstream, server = await start(stream, dialect=None, model=None)
    await forwarded(await relay(upstream))
    assert [asked.path for asked in server.requests] == ["/v1/chat/completions"]
