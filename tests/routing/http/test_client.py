"""Against real servers, each of which does one thing wrong, or right in an unusual way."""

import asyncio
import socket

import pytest
from yarl import URL

from headrace.routing.http.answer import MAX_UNREAD_BYTES, Answer
from headrace.routing.http.client import HttpClient
from headrace.routing.http.connection import UNSENT_TIMEOUT
from headrace.routing.http.errors import HttpError, MalformedError, UnreachableError
from routing.http.conftest import Serve
from routing.upstream.misbehaving_server import STREAM_HEAD, MisbehavingServer, Peer


async def ask(client: HttpClient, server: MisbehavingServer, data: bytes = b"") -> Answer:
    return await client.request("POST" if data else "GET", URL(server.url) / "x", data)


async def whole(answer: Answer) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


async def hello(peer: Peer) -> None:
    await peer.answer("hello")


async def settled() -> None:
    """What is under way on loopback has come."""
    await asyncio.sleep(0.05)


# What is sent


async def test_a_request_says_who_asks_for_what(serve: Serve) -> None:
    client, server = await serve(hello)
    url = (URL(server.url) / "a b").with_query(q="ü")
    answer = await client.request("POST", url, b"{}", {"X-Request-ID": "7"})
    assert (answer.status, await whole(answer)) == (200, b"hello")
    asked = server.requests[0]
    assert (asked.method, asked.path) == ("POST", "/v1/a%20b?q=%C3%BC")
    assert asked.body == b"{}"
    assert asked.headers == {
        "host": f"127.0.0.1:{url.port}",
        "x-key": "k",
        "x-request-id": "7",
        "content-length": "2",
    }


async def test_a_request_without_a_body_tells_no_length(serve: Serve) -> None:
    client, server = await serve(hello)
    await whole(await ask(client, server))
    assert "content-length" not in server.requests[0].headers
    await whole(await client.request("POST", URL(server.url)))
    assert server.requests[1].headers["content-length"] == "0"


@pytest.mark.parametrize("value", ["a\r\nEvil: 1", "a\n", "\x00", "ü"])
async def test_a_header_cannot_smuggle_another(serve: Serve, value: str) -> None:
    client, server = await serve(hello)
    with pytest.raises(ValueError, match="what no header can") as caught:
        await client.request("GET", URL(server.url), headers={"X-A": value})
    assert value not in str(caught.value)
    assert not server.num_connections


async def test_a_large_body_is_sent_as_the_server_takes_it() -> None:
    data = bytes(range(256)) * (64 << 10)  # 16 MiB

    async def take_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        got.append(b"content-length: %d" % len(data) in head.lower())
        body = b""
        while len(body) < len(data):
            body += await reader.read(1 << 20)
            await asyncio.sleep(0)
        got.append(body == data)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.transport.abort()
        gone.set()

    got: list[bool] = []
    gone = asyncio.Event()
    server = await asyncio.start_server(take_slowly, "127.0.0.1", 0)
    url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    client = HttpClient(url, None, headers={}, connect_timeout=5.0)
    answer = await client.request("POST", url, data)
    assert (answer.status, got) == (200, [True, True])
    await client.close()
    await asyncio.wait_for(gone.wait(), 10)
    server.close()


async def test_a_connection_whose_request_was_not_taken_whole_is_not_kept() -> None:
    async def refuse_unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(refuse_unread, "127.0.0.1", 0)
    url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    client = HttpClient(url, None, headers={}, connect_timeout=5.0)
    for number in (1, 2):
        answer = await client.request("POST", url, bytes(32 << 20))
        assert (answer.status, await whole(answer)) == (413, b"no")
        assert len(writers) == number
    await client.close()
    for writer in writers:
        writer.transport.abort()
    server.close()
    await settled()


# What comes


async def test_an_answer_may_come_byte_by_byte(serve: Serve) -> None:
    async def drip(peer: Peer) -> None:
        for byte in STREAM_HEAD + b"5\r\nhello\r\n0\r\n\r\n":
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)

    client, server = await serve(drip)
    for _ in range(2):
        assert await whole(await ask(client, server)) == b"hello"
    assert server.num_connections == 1


async def test_informational_answers_are_passed_over(serve: Serve) -> None:
    async def hint(peer: Peer) -> None:
        await peer.send("HTTP/1.1 100 Continue\r\n\r\n")
        await settled()
        await peer.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 ")
        await settled()
        await peer.send("200 OK\r\nContent-Length: 5\r\n\r\nhello")

    client, server = await serve(hint)
    for _ in range(2):
        answer = await ask(client, server)
        assert (answer.status, answer.headers) == (200, {"content-length": "5"})
        assert await whole(answer) == b"hello"
    assert server.num_connections == 1


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_some_answers_have_no_body(serve: Serve, status: str) -> None:
    async def bare(peer: Peer) -> None:
        await peer.send(f"HTTP/1.1 {status}\r\n\r\n")

    client, server = await serve(bare)
    for _ in range(2):
        assert await whole(await ask(client, server)) == b""
    assert server.num_connections == 1


async def test_a_body_without_a_length_ends_with_the_connection(serve: Serve) -> None:
    async def until_close(peer: Peer) -> None:
        await peer.send("HTTP/1.1 200 OK\r\n\r\nhel")
        await settled()
        await peer.send("lo")
        peer.close()

    client, server = await serve(until_close)
    for _ in range(2):
        assert await whole(await ask(client, server)) == b"hello"
    assert server.num_connections == 2


async def reset(peer: Peer) -> None:
    await peer.send("HTTP/1.1 200 OK\r\n\r\nhel")
    await settled()
    option = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, with no time to linger
    opened = peer._writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    peer.abort()


async def drop_in_a_chunk(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"5\r\nhel")
    peer.close()


async def drop_before_the_last_chunk(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"3\r\nhel\r\n")
    peer.close()


async def drop_in_a_count(peer: Peer) -> None:
    await peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
    peer.close()


async def wrong_chunk_size(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"3\r\nhel\r\nxyz\r\n")
    await peer.gone()


async def huge_chunk_size(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"3\r\nhel\r\n" + b"f" * 40 + b"\r\n")
    await peer.gone()


async def chunk_without_an_end(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"3\r\nhello\r\n")
    await peer.gone()


async def trailer_without_an_end(peer: Peer) -> None:
    await peer.send(STREAM_HEAD + b"3\r\nhel\r\n0\r\nX-Trailer: ")
    while True:
        await peer.send(b"x" * 10_000)


@pytest.mark.parametrize(
    "script",
    [
        reset,
        drop_in_a_chunk,
        drop_before_the_last_chunk,
        drop_in_a_count,
        wrong_chunk_size,
        huge_chunk_size,
        chunk_without_an_end,
        trailer_without_an_end,
    ],
)
async def test_a_body_that_is_not_whole_is_an_error_after_what_came(
    serve: Serve, script: object
) -> None:
    client, server = await serve(script)  # type: ignore[arg-type]
    answer = await ask(client, server)
    got: list[bytes] = []
    with pytest.raises(MalformedError, match="broke off or makes no sense"):
        await answer.forward(lambda piece: got.append(piece) is None)
    assert b"".join(got) == b"hel"
    await asyncio.wait_for(server.someone_left.wait(), 10)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x15\x03\x01\x00\x02\x02\x16 nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nX-Huge: " + b"x" * (1 << 20),
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_an_error(serve: Serve, garbage: bytes) -> None:
    async def send(peer: Peer) -> None:
        await peer.send(garbage)
        await peer.gone()

    client, server = await serve(send)
    with pytest.raises(MalformedError, match="no HTTP that we take"):
        await ask(client, server)
    await asyncio.wait_for(server.someone_left.wait(), 10)


# What is kept


@pytest.mark.parametrize("extra", ["garbage", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_what_follows_an_answer_belongs_to_no_other(
    serve: Serve, extra: str, *, is_late: bool
) -> None:
    async def go_on(peer: Peer) -> None:
        await peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        if is_late:
            await settled()
        await peer.send(extra)

    client, server = await serve(go_on)
    for number in (1, 2, 3):
        assert await whole(await ask(client, server)) == b"hello"
        await asyncio.wait_for(server.someone_left.wait(), 10)
        server.someone_left.clear()
        assert server.num_connections == number


async def test_what_came_since_the_last_answer_is_seen_before_the_next_request() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = URL(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        client = HttpClient(url, None, headers={}, connect_timeout=5.0)
        peers: list[socket.socket] = []
        for number in (1, 2):
            asking = asyncio.create_task(client.request("GET", url))
            peer, _ = await loop.sock_accept(listener)
            peers.append(peer)
            await loop.sock_recv(peer, 1 << 16)
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)
            assert await whole(await asking) == b"%d" % number
            # As servers do that have waited for long enough; no turn of the loop is between.
            peer.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await client.close()
        for peer in peers:
            peer.close()


async def test_a_connection_that_is_to_be_closed_is_not_used_again(serve: Serve) -> None:
    async def say_close(peer: Peer) -> None:
        await peer.answer("hello", Connection="close")

    client, server = await serve(say_close)
    for number in (1, 2):
        assert await whole(await ask(client, server)) == b"hello"
        assert server.num_connections == number


async def test_the_connection_that_was_used_last_is_used_first(serve: Serve) -> None:
    go_on = asyncio.Event()
    ports: list[int] = []

    async def note(peer: Peer) -> None:
        ports.append(peer._writer.get_extra_info("peername")[1])
        if len(ports) == 1:
            await go_on.wait()
        await peer.answer("hello")

    client, server = await serve(note)
    first = asyncio.create_task(ask(client, server))
    while not ports:  # noqa: ASYNC110  # a list has no event
        await asyncio.sleep(0.001)
    await ask(client, server)
    go_on.set()
    await first
    for _ in range(3):
        await ask(client, server)
    assert ports[2:] == [ports[0]] * 3
    assert server.num_connections == 2


async def test_idle_connections_are_closed_after_a_while(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.routing.http.pool.KEEPALIVE_TIMEOUT", 0.05)
    client, server = await serve(hello)
    await whole(await ask(client, server))
    await asyncio.wait_for(server.someone_left.wait(), 10)
    assert await whole(await ask(client, server)) == b"hello"
    assert server.num_connections == 2


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(serve: Serve) -> None:
    async def close_after(peer: Peer) -> None:
        await peer.answer("hello")
        peer.close()

    client, server = await serve(close_after)
    for number in (1, 2, 3):
        assert await whole(await ask(client, server)) == b"hello"
        await settled()
        assert len(server.requests) == number


async def test_a_kept_connection_that_closes_unanswered_is_replaced_once(serve: Serve) -> None:
    async def close_every_second(peer: Peer) -> None:
        if len(server.requests) == 1:
            await peer.answer("hello")
        else:
            peer.close()

    client, server = await serve(close_every_second)
    await whole(await ask(client, server))
    with pytest.raises(UnreachableError, match="the connection broke"):
        await ask(client, server)
    assert len(server.requests) == 3


async def test_a_kept_connection_that_closes_in_a_head_is_not_replaced(serve: Serve) -> None:
    async def begin_and_close(peer: Peer) -> None:
        if len(server.requests) == 1:
            await peer.answer("hello")
        else:
            await peer.send("HTTP/1.1 20")
            peer.close()

    client, server = await serve(begin_and_close)
    await whole(await ask(client, server))
    with pytest.raises(UnreachableError, match="the connection broke"):
        await ask(client, server)
    assert len(server.requests) == 2


async def test_many_at_once_each_get_their_own(serve: Serve) -> None:
    async def echo(peer: Peer) -> None:
        await asyncio.sleep(0)
        await peer.answer(peer.asked.body)

    async def one(number: int) -> None:
        for turn in range(10):
            data = f"{number}.{turn} ".encode() * (number * 200)
            assert await whole(await ask(client, server, data)) == data

    client, server = await serve(echo)
    async with asyncio.TaskGroup() as group:
        for number in range(1, 21):
            group.create_task(one(number))
    assert server.num_connections == 20


# Back pressure


async def test_a_slow_reader_slows_the_server_down(serve: Serve) -> None:
    size = 64 << 20
    sent = 0

    async def pour(peer: Peer) -> None:
        nonlocal sent
        await peer.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
        while sent < size:
            await peer.send(bytes(1 << 18))
            sent += 1 << 18

    client, server = await serve(pour)
    answer = await ask(client, server)
    before = -1
    while before != sent:  # until the sockets of both sides are full
        before = sent
        await asyncio.sleep(0.2)
    assert sent < size // 2
    assert answer._num_unread <= MAX_UNREAD_BYTES + (1 << 18)
    assert len(await whole(answer)) == size
    server.script = hello
    assert await whole(await ask(client, server)) == b"hello"
    assert server.num_connections == 1


async def test_a_reader_that_wants_a_pause_gets_one(serve: Serve) -> None:
    size = 8 << 20
    got = num_pauses = 0

    async def pour(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for _ in range(size >> 16):
            await peer.send_chunk(bytes(1 << 16))
        await peer.send_chunk("")

    def take(piece: bytes) -> bool:
        nonlocal got
        got += len(piece)
        return False

    client, server = await serve(pour)
    answer = await ask(client, server)
    while not await answer.forward(take):
        num_pauses += 1
        await asyncio.sleep(0)
    assert got == size
    assert num_pauses > 1


async def test_what_one_read_brings_is_one_piece_which_knows_that_it_is_the_last(
    serve: Serve,
) -> None:
    async def stream(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await begin.wait()
        await peer.send(b"3\r\none\r\n3\r\ntwo\r\n")
        await settled()
        await peer.send(b"5\r\nthree\r\n4\r\nfour\r\n0\r\n\r\n")

    def take(piece: bytes) -> bool:
        got.append((piece, answer.is_over))
        return True

    begin = asyncio.Event()
    got: list[tuple[bytes, bool]] = []
    client, server = await serve(stream)
    answer = await ask(client, server)
    begin.set()
    assert await answer.forward(take)
    assert got == [(b"onetwo", False), (b"threefour", True)]
    await ask(client, server)
    assert server.num_connections == 1


# Leaving


async def hang_after_a_piece(peer: Peer) -> None:
    await peer.send(STREAM_HEAD)
    await peer.send_chunk("hello")
    await peer.gone()


async def test_an_answer_that_is_not_wanted_costs_its_connection(serve: Serve) -> None:
    client, server = await serve(hang_after_a_piece)
    answer = await ask(client, server)
    assert await answer.read() == b"hello"
    answer.abort()
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_a_request_that_is_cancelled_costs_its_connection(serve: Serve) -> None:
    async def hang(peer: Peer) -> None:
        await peer.gone()

    client, server = await serve(hang)
    task = asyncio.create_task(ask(client, server))
    while not server.requests:  # noqa: ASYNC110  # a server's list has no event
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.someone_left.wait(), 10)


async def test_an_answer_that_is_over_cannot_abort_the_next_one(serve: Serve) -> None:
    client, server = await serve(hello)
    first = await ask(client, server)
    await whole(first)
    server.script = hang_after_a_piece
    second = await ask(client, server)
    first.abort()
    assert await second.read() == b"hello"
    assert server.num_connections == 1


async def test_closing_ends_what_is_asked_read_and_kept(serve: Serve) -> None:
    async def by_path(peer: Peer) -> None:
        if len(server.requests) == 3:
            await peer.gone()
        elif len(server.requests) == 2:
            await hang_after_a_piece(peer)
        else:
            await peer.answer("hello")

    client, server = await serve(by_path)
    kept = await ask(client, server)
    read = await ask(client, server)
    await read.read()
    asked = asyncio.create_task(ask(client, server))
    while len(server.requests) < 3:  # noqa: ASYNC110  # a server's list has no event
        await asyncio.sleep(0.001)
    await client.close()
    assert await whole(kept) == b"hello"
    for broken in (read.read(), asked, ask(client, server)):
        with pytest.raises(HttpError):
            await broken
    assert not client._pool._open
    await client.close()


# Connecting


async def test_nobody_listens(serve: Serve) -> None:
    client, server = await serve(hello)
    await server.stop()
    with pytest.raises(UnreachableError, match="no connection: Connection refused"):
        await ask(client, server)


async def test_a_host_that_nobody_knows() -> None:
    for host in ("no-such-host.invalid", "x" * 70 + ".invalid"):
        url = URL(f"http://{host}/")
        client = HttpClient(url, None, headers={}, connect_timeout=5.0)
        with pytest.raises(UnreachableError, match=r"not known|no connection"):
            await client.request("GET", url)
        await client.close()


async def test_a_peer_that_takes_nothing_is_given_up(serve: Serve) -> None:
    client, server = await serve(hello)
    await ask(client, server)
    (connection,) = client._pool._open
    opened = connection._transport.get_extra_info("socket")
    assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNSENT_TIMEOUT
    assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
