"""What a server may do wrong on the wire, each done by a real one."""

import asyncio
import gzip
import time
from email.utils import formatdate

import pytest

from headrace.endpoints import UpstreamConfig
from headrace.errors import (
    ConfigurationError,
    ContextLengthError,
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
)
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)
from headrace.routing.upstream.upstream import Upstream
from routing.upstream.asking import answer, chunks, request, until_error
from routing.upstream.conftest import KEY, Start
from routing.upstream.misbehaving_server import (
    DONE,
    STREAM_HEAD,
    WHOLE,
    Peer,
    text,
)


async def hang(peer: Peer) -> None:
    await peer.gone()


async def hang_after_the_head(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.gone()


async def hang_in_the_middle(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    await peer.gone()


async def whole(peer: Peer) -> None:
    await peer.stream(*WHOLE)


# Silence


@pytest.mark.parametrize("script", [hang, hang_after_the_head])
async def test_a_server_that_says_nothing_is_given_up(start: Start, script: object) -> None:
    upstream, server = await start(script, first_byte_timeout=0.05)
    with pytest.raises(UpstreamUnreachableError, match="upstream up: it does not answer in time"):
        await chunks(upstream)
    await asyncio.wait_for(server.someone_left.wait(), 10)


@pytest.mark.parametrize("script", [hang, hang_after_the_head, hang_in_the_middle])
async def test_a_deadline_fires_whatever_the_server_does(start: Start, script: object) -> None:
    upstream, server = await start(script)
    with pytest.raises(DeadlineError):
        await chunks(upstream, within=0.05)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_deadline_that_has_passed_is_not_sent(start: Start) -> None:
    upstream, server = await start(whole)
    with pytest.raises(DeadlineError):
        await chunks(upstream, within=-1)
    assert not server.requests


async def test_a_stream_that_falls_silent_breaks(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle, idle_timeout=0.05)
    got, error = await until_error(upstream)
    assert isinstance(error, UpstreamUnreachableError)
    assert [chunk.text for chunk in got] == ["Hello"]
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_deadline_closes_the_connection_of_a_reader_that_does_not_read(
    start: Start,
) -> None:
    upstream, server = await start(hang_in_the_middle)
    stream = upstream.generate(request(within=0.2))
    assert (await anext(stream)).text == "Hello"
    await asyncio.wait_for(server.someone_left.wait(), 10)
    with pytest.raises(DeadlineError):
        await anext(stream)


async def test_a_reader_that_pauses_does_not_make_the_server_late(start: Start) -> None:
    go_on = asyncio.Event()

    async def pause(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(WHOLE[0])
        await go_on.wait()
        for each in (*WHOLE[1:], ""):
            await peer.send_chunk(each)

    upstream, _ = await start(pause, idle_timeout=0.05)
    stream = upstream.generate(request())
    await anext(stream)
    await asyncio.sleep(0.2)
    go_on.set()
    assert [chunk.text async for chunk in stream] == [" you"]


async def test_an_answer_may_come_byte_by_byte(start: Start) -> None:
    async def drip(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for byte in "".join(WHOLE).encode():
            await peer.send_chunk(bytes([byte]))
            await asyncio.sleep(0)
        await peer.send_chunk("")

    upstream, _ = await start(drip)
    assert (await answer(upstream)).text == "Hello you"


# Ends that are too early


async def drop_before_the_head(peer: Peer) -> None:
    peer.close()


async def reset_before_the_head(peer: Peer) -> None:
    peer.abort()


@pytest.mark.parametrize("script", [drop_before_the_head, reset_before_the_head])
async def test_a_new_connection_that_closes_is_not_tried_again(
    start: Start, script: object
) -> None:
    upstream, server = await start(script)
    with pytest.raises(UpstreamUnreachableError, match="upstream up: the connection broke"):
        await chunks(upstream)
    assert len(server.requests) == 1


async def drop_in_a_chunked_body(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    peer.close()


async def reset_in_a_chunked_body(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    peer.abort()


async def drop_in_a_counted_body(peer: Peer) -> None:
    await peer.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n"
    )
    await peer.send(WHOLE[0])
    peer.close()


async def end_an_uncounted_body(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    await peer.send(WHOLE[0])
    peer.close()


async def end_without_a_finish_reason(peer: Peer) -> None:
    await peer.stream(WHOLE[0], DONE)


async def end_after_the_finish_reason(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0] + WHOLE[1])
    peer.close()


async def send_no_chunk_length(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(WHOLE[0])
    await peer.send("zz\r\nxx\r\n")
    await peer.gone()


@pytest.mark.parametrize(
    "script",
    [
        drop_in_a_chunked_body,
        reset_in_a_chunked_body,
        drop_in_a_counted_body,
        end_an_uncounted_body,
        end_without_a_finish_reason,
        send_no_chunk_length,
    ],
)
async def test_a_body_that_ends_early_breaks_after_what_came(start: Start, script: object) -> None:
    upstream, _ = await start(script)
    got, error = await until_error(upstream)
    assert isinstance(error, UpstreamBrokenError)
    assert error.message.startswith("upstream up: its answer ")
    assert "Hello you".startswith("".join(chunk.text for chunk in got))
    assert not any(chunk.finish_reason for chunk in got)


async def test_an_answer_may_end_without_its_last_word(start: Start) -> None:
    async def no_done(peer: Peer) -> None:
        await peer.stream(*WHOLE[:2])

    upstream, _ = await start(no_done)
    last = await answer(upstream)
    assert (last.text, last.finish_reason, last.usage) == ("Hello you", "stop", None)


async def test_an_answer_that_breaks_off_after_its_finish_reason_lacks_only_its_usage(
    start: Start,
) -> None:
    upstream, _ = await start(end_after_the_finish_reason)
    last = await answer(upstream)
    assert (last.text, last.finish_reason) == ("Hello you", "stop")


# Garbage


async def nonsense(peer: Peer) -> None:
    await peer.send(b"\x15\x03\x01\x00\x02\x02\x16 nonsense\r\n\r\n")
    peer.close()


async def another_protocol(peer: Peer) -> None:
    await peer.send(b"SSH-2.0-OpenSSH_9.9\r\n")
    await peer.gone()


async def a_huge_header(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nX-Huge: ")
    for _ in range(64):
        await peer.send(b"x" * (1 << 16))
    await peer.gone()


async def many_headers(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 100_000 + b"\r\n")
    await peer.gone()


async def two_lengths(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!")
    await peer.gone()


@pytest.mark.parametrize(
    "script", [nonsense, another_protocol, a_huge_header, many_headers, two_lengths]
)
async def test_what_is_no_http_is_no_answer(start: Start, script: object) -> None:
    upstream, server = await start(script)
    with pytest.raises(
        UpstreamBrokenError, match="upstream up: its answer is no HTTP that we take"
    ):
        await chunks(upstream)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_informational_heads_without_end_are_given_up(start: Start) -> None:
    async def early_hints(peer: Peer) -> None:
        while True:
            await peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await asyncio.sleep(0.001)

    upstream, _ = await start(early_hints, first_byte_timeout=0.1)
    with pytest.raises(UpstreamUnreachableError):
        await chunks(upstream)


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "null",
        "[]",
        "{}",
        '{"choices": 3}',
        '{"choices": [{"index": -1, "text": "x"}]}',
        '{"choices": [{"index": 1, "text": "x"}]}',
        '{"choices": [{"index": 0, "text": 7}]}',
        '{"choices": [{"text": "x", "token_ids": [-4]}]}',
        '{"choices": [], "usage": {"prompt_tokens": 1e400}}',
        '{"choices": [], "usage": {"prompt_tokens": -1}}',
        "\udcff\udcfe",
        '{"choices": [{"text": "\\ud800"}]}',
        '{"x":' * 100_000,
        '{"choices": ' + "[" * 100_000,
    ],
)
async def test_an_event_that_makes_no_sense_breaks_the_answer(start: Start, data: str) -> None:
    async def send(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(WHOLE[0])
        await peer.send_chunk(f"data: {data}\n\n".encode(errors="surrogateescape"))
        await peer.gone()

    upstream, server = await start(send)
    with pytest.raises(UpstreamBrokenError, match="upstream up: "):
        await chunks(upstream)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_line_without_end_is_cut_off(start: Start) -> None:
    sent = 0

    async def endless(peer: Peer) -> None:
        nonlocal sent
        await peer.send(STREAM_HEAD)
        while True:
            await peer.send_chunk(b"x" * (1 << 18))
            sent += 1 << 18

    upstream, server = await start(endless)
    with pytest.raises(UpstreamBrokenError, match="it sent an event of over"):
        await chunks(upstream)
    await asyncio.wait_for(server.someone_left.wait(), 10)
    assert sent < 64 << 20


async def test_events_without_end_that_say_nothing_end_with_the_deadline(start: Start) -> None:
    async def comments(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        while True:
            await peer.send_chunk(": still here\n\n")
            await asyncio.sleep(0.001)

    upstream, _ = await start(comments)
    with pytest.raises(DeadlineError):
        await chunks(upstream, within=0.1)


async def test_an_answer_without_end_is_cut_off(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.routing.upstream.answer.MAX_ANSWER_SIZE", 1 << 20)

    async def chatter(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        while True:
            await peer.send_chunk(text("and on ") * 100)

    upstream, _ = await start(chatter)
    with pytest.raises(UpstreamBrokenError, match="its answer has no end"):
        await chunks(upstream)


# Refusals


REFUSALS = [
    ("429 Too Many Requests", '{"error": {"message": "slow down"}}', UpstreamBusyError),
    ("503 Service Unavailable", "", UpstreamBusyError),
    ("500 Internal Server Error", "<html>Oh no</html>", UpstreamFaultError),
    ("502 Bad Gateway", "<html>nginx</html>", UpstreamFaultError),
    ("504 Gateway Timeout", "", UpstreamFaultError),
    ("400 Bad Request", '{"error": {"message": "no", "param": "top_k"}}', InvalidRequestError),
    ("401 Unauthorized", f'{{"error": {{"message": "bad key {KEY}"}}}}', UpstreamRefusedError),
    ("404 Not Found", '{"error": {"message": "what?"}}', UpstreamRefusedError),
    ("302 Found", "", UpstreamRefusedError),
    ("204 No Content", "", UpstreamRefusedError),
]


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
async def test_a_status_that_is_no_success_is_an_error(
    start: Start, status: str, body: str, kind: type[HeadraceError]
) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer(body, status, Location="http://127.0.0.1:1/elsewhere", Retry_After="7")

    upstream, server = await start(refuse)
    with pytest.raises(HeadraceError, match="upstream up: ") as caught:
        await chunks(upstream)
    assert type(caught.value) is kind
    assert KEY not in str(caught.value)
    assert "html" not in str(caught.value)
    assert len(server.requests) == 1
    if kind is UpstreamBusyError:
        assert caught.value.retry_after == 7.0


async def test_retry_after_may_be_a_date(start: Start) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.answer("", "503 No", Retry_After=formatdate(time.time() + 100, usegmt=True))

    upstream, _ = await start(refuse)
    with pytest.raises(UpstreamBusyError) as caught:
        await chunks(upstream)
    assert 0 < (caught.value.retry_after or 0) <= 100


async def test_a_prompt_that_is_too_long_there_is_too_long_here(start: Start) -> None:
    async def refuse(peer: Peer) -> None:
        message = "This model's maximum context length is 8 tokens. However, you requested 9."
        await peer.answer(
            f'{{"error": {{"message": "{message}", "type": "BadRequestError", "code": 400}}}}',
            "400 Bad Request",
        )

    upstream, _ = await start(refuse)
    with pytest.raises(ContextLengthError, match="maximum context length is 8"):
        await chunks(upstream)


async def test_a_refusal_without_end_still_is_what_its_status_says(start: Start) -> None:
    async def endless(peer: Peer) -> None:
        await peer.send("HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.send_chunk("<p>" * 10_000)

    upstream, server = await start(endless)
    with pytest.raises(InvalidRequestError, match="it answered with status 400"):
        await chunks(upstream)
    await asyncio.wait_for(server.someone_left.wait(), 10)


@pytest.mark.parametrize("body", ['{"error": {"message": "broken inside"}}', "<html></html>"])
async def test_a_success_that_is_no_stream_is_an_error(start: Start, body: str) -> None:
    async def answer_whole(peer: Peer) -> None:
        await peer.answer(body)

    upstream, _ = await start(answer_whole)
    with pytest.raises((UpstreamFaultError, UpstreamBrokenError), match=r"broken inside|no stream"):
        await chunks(upstream)


# Compression


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "made-up"])
async def test_a_compressed_answer_is_refused_unread(start: Start, encoding: str) -> None:
    async def compress(peer: Peer) -> None:
        body = gzip.compress("".join(WHOLE).encode())
        await peer.answer(body, kind="text/event-stream", Content_Encoding=encoding)
        await peer.gone()

    upstream, server = await start(compress)
    with pytest.raises(UpstreamBrokenError, match="compressed, which we did not ask for"):
        await chunks(upstream)
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_compressed_refusal_is_what_its_status_says(start: Start) -> None:
    async def refuse(peer: Peer) -> None:
        bomb = gzip.compress(bytes(1 << 20))
        await peer.answer(bomb, "503 No", Content_Encoding="gzip", Retry_After="2")

    upstream, _ = await start(refuse)
    with pytest.raises(UpstreamBusyError, match="it answered with status 503") as caught:
        await chunks(upstream)
    assert caught.value.retry_after == 2.0


async def test_an_encoding_that_changes_nothing_is_none(start: Start) -> None:
    async def identity(peer: Peer) -> None:
        body = "".join(WHOLE)
        await peer.answer(body, kind="text/event-stream", Content_Encoding="identity")

    upstream, _ = await start(identity)
    assert (await answer(upstream)).text == "Hello you"


# Connections


async def test_a_connection_is_used_again(start: Start) -> None:
    upstream, server = await start(whole)
    for _ in range(3):
        assert (await answer(upstream)).text == "Hello you"
    assert server.num_connections == 1


async def test_a_kept_connection_that_closes_is_replaced_once(start: Start) -> None:
    async def close_when_asked_again(peer: Peer) -> None:
        if len(server.requests) == 2:
            peer.close()
        else:
            await peer.stream(*WHOLE)

    upstream, server = await start(close_when_asked_again)
    assert (await answer(upstream)).text == "Hello you"
    assert (await answer(upstream)).text == "Hello you"
    assert (len(server.requests), server.num_connections) == (3, 2)


async def test_a_server_that_was_started_again_is_found(start: Start) -> None:
    upstream, server = await start(whole)
    await answer(upstream)
    await server.stop()
    await server.start()
    assert (await answer(upstream)).text == "Hello you"


async def test_a_kept_connection_that_breaks_in_the_answer_is_not_tried_again(
    start: Start,
) -> None:
    async def break_when_asked_again(peer: Peer) -> None:
        if len(server.requests) == 1:
            await peer.stream(*WHOLE)
        else:
            await drop_in_a_chunked_body(peer)

    upstream, server = await start(break_when_asked_again)
    await answer(upstream)
    with pytest.raises(UpstreamBrokenError):
        await chunks(upstream)
    assert len(server.requests) == 2


async def test_nobody_listens(start: Start) -> None:
    upstream, server = await start(whole)
    await server.stop()
    with pytest.raises(UpstreamUnreachableError, match="upstream up: no connection: "):
        await chunks(upstream)


async def test_a_listener_that_takes_no_connection_is_given_up() -> None:
    # The address is of a network that documentation alone uses: nothing answers there.
    config = UpstreamConfig(
        url="http://192.0.2.1:9/v1", model="m", dialect="openai", connect_timeout=0.05
    )
    async with Upstream(config) as upstream:
        with pytest.raises(UpstreamUnreachableError, match=r"upstream 192.0.2.1:9: no connection"):
            await chunks(upstream)


async def test_a_body_that_is_still_being_sent_does_not_hold_a_deadline_up() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await gone.wait()
        writer.transport.abort()

    gone = asyncio.Event()
    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = UpstreamConfig(url=f"http://127.0.0.1:{port}/v1", model="m", dialect="openai")
    async with Upstream(config) as upstream:
        with pytest.raises(DeadlineError):
            await chunks(upstream, "x" * (32 << 20), within=0.2)
    gone.set()
    server.close()


async def test_closing_the_stream_closes_the_connection(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle)
    stream = upstream.generate(request())
    await anext(stream)
    await stream.aclose()
    await asyncio.wait_for(server.someone_left.wait(), 10)
    assert [chunk async for chunk in stream] == []


async def test_cancelling_a_reader_closes_the_connection(start: Start) -> None:
    upstream, server = await start(hang)
    task = asyncio.create_task(chunks(upstream))
    while not server.requests:  # noqa: ASYNC110  # a server's list has no event
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_closing_an_upstream_ends_what_runs(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle)
    stream = upstream.generate(request())
    await anext(stream)
    await upstream.close()
    with pytest.raises(HeadraceError):
        await anext(stream)
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_server_that_does_not_end_its_body_loses_the_connection_and_nothing_else(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.routing.upstream.body.LINGER", 0.05)

    async def no_end(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk("".join(WHOLE))
        await peer.gone()

    upstream, server = await start(no_end)
    assert (await answer(upstream)).text == "Hello you"
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_large_bodies_are_sent_whole(start: Start) -> None:
    upstream, server = await start(whole)
    prompt = "x" * (3 << 20)
    assert (await answer(upstream, prompt)).text == "Hello you"
    assert server.requests[0].json["prompt"] == prompt


async def test_an_answer_before_the_body_was_sent_is_heard() -> None:
    async def refuse_unread(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await gone.wait()
        writer.transport.abort()

    gone = asyncio.Event()
    server = await asyncio.start_server(refuse_unread, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = UpstreamConfig(url=f"http://127.0.0.1:{port}/v1", model="m", dialect="openai")
    async with Upstream(config) as upstream:
        with pytest.raises(HeadraceError) as caught:
            await chunks(upstream, "x" * (8 << 20))
    assert caught.value.status == 413
    gone.set()
    server.close()


async def test_more_requests_than_it_may_have_are_refused_at_once(start: Start) -> None:
    upstream, server = await start(hang_in_the_middle, max_connections=2)
    streams = [upstream.generate(request()) for _ in range(2)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(UpstreamBusyError, match="it has 2 requests of ours, as many as it may"):
        await chunks(upstream)
    await streams[0].aclose()
    assert await anext(upstream.generate(request()))
    assert len(server.requests) == 3


async def test_failures_give_their_places_back(start: Start) -> None:
    async def fail(peer: Peer) -> None:
        if len(server.requests) % 2:
            await peer.answer("", "500 Oh")
        peer.close()

    upstream, server = await start(fail, max_connections=1)
    for _ in range(4):
        with pytest.raises((UpstreamFaultError, UpstreamUnreachableError)):
            await chunks(upstream)


async def test_a_stream_closed_while_it_begins_leaves_nothing(start: Start) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait_with_the_head(peer: Peer) -> None:
        begun.set()
        await go_on.wait()
        await hang_in_the_middle(peer)

    upstream, server = await start(wait_with_the_head)
    stream = upstream.generate(request())
    task = asyncio.create_task(anext(stream, None))
    await begun.wait()
    await stream.aclose()
    go_on.set()
    assert await task is None
    await asyncio.wait_for(server.someone_left.wait(), 10)


# Secrets


@pytest.mark.parametrize("key", ["", "two\r\nlines", "tab\t", " padded ", "sécret"])
async def test_a_key_that_is_none_stops_the_start_unshown(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Upstream(UpstreamConfig(url="http://host/v1"), key)
    assert not key or key not in str(caught.value)


async def test_what_the_server_says_never_holds_the_key(start: Start) -> None:
    async def tell(peer: Peer) -> None:
        said = peer.asked.headers["authorization"]
        await peer.answer(f'{{"error": {{"message": "you sent {said}"}}}}', "400 Bad Request")

    upstream, server = await start(tell)
    with pytest.raises(InvalidRequestError, match=r"you sent Bearer \*\*\*") as caught:
        await chunks(upstream)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(caught.value)
    assert caught.value.__cause__ is None
