"""What arrives before any route can see it: heads without end, heads too large, no HTTP at all."""

import asyncio
import json
import time

import pytest
from structlog.testing import capture_logs

from api.raw import connected
from headrace.api import connection
from headrace.api.connection import MAX_HEAD_BYTES, MAX_PIPELINED

LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)


def parsed(answer: bytes) -> tuple[int, dict[str, str], dict[str, str]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return (
        int(status.split()[1]),
        dict(line.split(": ", 1) for line in lines),
        json.loads(body)["error"],
    )


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_as_everything_else_is(url: str, data: bytes) -> None:
    with capture_logs() as lines:
        async with connected(url) as (reader, writer):
            writer.write(data)
            answer = await asyncio.wait_for(reader.read(), 5)
    status, headers, error = parsed(answer)
    assert (status, error["code"]) == (400, "malformed_http")
    assert headers["x-request-id"] == error["request_id"]
    assert headers["x-frame-options"] == "DENY"
    (line,) = [line for line in lines if line["event"] == "http.refused"]
    assert line["request_id"] == error["request_id"]
    assert line["client"] == "127.0.0.1"


@pytest.mark.parametrize("header", [b"X: " + b"y" * 1000 + b"\r\n", b"X" * 1005])
async def test_a_head_over_its_bound_is_refused(url: str, header: bytes) -> None:
    piece = header * (MAX_HEAD_BYTES // len(header) // 2 + 1)
    async with connected(url) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():  # more after the refusal would reset the connection
            writer.write(piece)
            await asyncio.wait([answer], timeout=0.2)
        status, _, error = parsed(answer.result())
    assert (status, error["code"]) == (431, "head_too_large")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("data", [b"", b"\r\n", b"GET / HTTP/1.1\r\nX: "])
async def test_a_head_that_does_not_come_ends_the_connection(url: str, data: bytes) -> None:
    started = time.monotonic()
    async with connected(url) as (reader, writer):
        for _ in range(3):
            writer.write(data)
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert time.monotonic() - started >= connection.HEAD_TIMEOUT


@pytest.mark.usefixtures("impatient")
async def test_a_connection_waits_longer_between_requests(url: str) -> None:
    async with connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(LIVE)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), 5)
            await asyncio.sleep(2 * connection.HEAD_TIMEOUT)


async def test_a_body_does_not_count_as_the_head_behind_it(url: str) -> None:
    body = json.dumps({"pad": "x" * (3 * MAX_HEAD_BYTES)}).encode()
    request = b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with connected(url) as (reader, writer):
        writer.write(request + LIVE[:10])
        assert b"404" in await asyncio.wait_for(reader.readuntil(b"}}"), 5)
        writer.write(LIVE[10:])
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), 5)


async def test_pipelined_requests_are_answered_up_to_a_bound(url: str) -> None:
    async with connected(url) as (reader, writer):
        for _ in range(3):
            writer.write(LIVE * (MAX_PIPELINED + 1))
            for _ in range(MAX_PIPELINED + 1):
                assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"}"), 5)


async def test_more_pipelined_requests_are_refused_before_one_is_answered(url: str) -> None:
    with capture_logs() as lines:
        async with connected(url) as (reader, writer):
            writer.write(LIVE * 200)  # more than one read would reset the connection
            status, headers, error = parsed(await asyncio.wait_for(reader.read(), 5))
    assert (status, error["code"]) == (400, "too_many_pipelined")
    assert headers["connection"] == "close"
    (line,) = [line for line in lines if line["event"] == "http.refused"]
    assert line["request_id"] == error["request_id"]
