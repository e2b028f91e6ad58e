import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.client import CompletionClient, CompletionStream, HttpClient
from scripted_server import (
    DONE,
    HEAD,
    SILENT,
    TEXT,
    USAGE,
    Answer,
    ScriptedServer,
    chunk,
    listening,
    streaming,
)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[ScriptedServer, CompletionClient]]:
    async with listening(answer) as script:
        http = HttpClient(script.url, timeout=10)
        try:
            yield script, CompletionClient(http, "tiny", {"cache_prompt": False})
        finally:
            http.close()


async def test_a_stream_is_counted_by_its_outputs_and_its_usage() -> None:
    async with serving(streaming(TEXT, TEXT, SILENT, USAGE, DONE)) as (_, client):
        sample = await client.complete([1, 2, 3], 3)
    assert sample.error is None
    assert len(sample.arrivals) == 2
    assert (sample.prompt_tokens, sample.completion_tokens) == (7, 3)
    assert sample.sent <= sample.arrivals[0] <= sample.arrivals[1]


async def test_an_answer_has_its_text_and_the_version_that_it_names() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        named = HEAD.replace(b"\r\n\r\n", b"\r\nX-Headrace-Version: tiny@2\r\n\r\n")
        writer.write(named + chunk(TEXT + TEXT + USAGE + DONE) + chunk(b""))

    async with serving(answer) as (_, client):
        sample = await client.complete([1, 2, 3], 3)
    assert (sample.text, sample.version) == ("aa", "tiny@2")
    async with serving(streaming(TEXT, USAGE, DONE)) as (_, client):
        assert (await client.complete([1], 1)).version is None


@pytest.mark.parametrize("size", [1, 2, 7, 50])
async def test_events_may_be_cut_anywhere(size: int) -> None:
    whole = TEXT + TEXT + USAGE + DONE
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    async with serving(streaming(*pieces)) as (_, client):
        sample = await client.complete([1], 3)
    assert sample.error is None
    assert len(sample.arrivals) == 2


async def test_carriage_returns_and_comments_are_allowed() -> None:
    events = (TEXT + b": ping\n\n" + USAGE + DONE).replace(b"\n", b"\r\n")
    async with serving(streaming(events)) as (_, client):
        sample = await client.complete([1], 3)
    assert sample.error is None
    assert len(sample.arrivals) == 1


async def test_outputs_are_stamped_when_they_come_not_when_the_answer_ends() -> None:
    has_first = asyncio.Event()

    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TEXT))
        await has_first.wait()
        writer.write(chunk(TEXT) + chunk(USAGE + DONE) + chunk(b""))

    stream = CompletionStream()
    between: list[float] = []

    def feed(data: bytes) -> None:
        stream.feed(data)
        between.append(time.monotonic())
        has_first.set()

    async with serving(answer) as (script, _):
        http = HttpClient(script.url)
        await http.exchange("POST", "/v1/completions", feed, {})
        http.close()
    assert stream.arrivals[0] <= between[0] <= stream.arrivals[1]


async def test_the_request_asks_for_an_exact_length_and_its_usage() -> None:
    async with serving(streaming(TEXT, USAGE, DONE)) as (script, client):
        await client.complete([5, 6], 3)
    body = script.requests[0]
    for field in (
        b'"prompt":[5,6]',
        b'"max_tokens":3',
        b'"ignore_eos":true',
        b'"cache_prompt":false',
        b'"include_usage":true',
    ):
        assert field in body


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with serving(streaming(TEXT, USAGE, DONE)) as (script, client):
        for _ in range(3):
            assert (await client.complete([1], 3)).error is None
    assert script.num_connections == 1


async def test_requests_at_once_take_a_connection_each() -> None:
    async with serving(streaming(TEXT, USAGE, DONE)) as (script, client):
        await asyncio.gather(*(client.complete([1], 3) for _ in range(4)))
    assert script.num_connections == 4


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        if len(script.requests) == 2:
            writer.close()  # as a server does whose keep-alive ran out as the request came
        else:
            await streaming(TEXT, USAGE, DONE)(body, writer)

    async with serving(answer) as (script, client):
        first, second = await client.complete([1], 3), await client.complete([1], 3)
    assert (first.error, second.error) == (None, None)
    assert script.num_connections == 2


async def test_an_error_status_is_kept_with_its_body() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        body = b'{"error": {"message": "queue full"}}'
        writer.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    async with serving(answer) as (_, client):
        sample = await client.complete([1], 3)
    assert sample.error is not None
    assert "503" in sample.error
    assert "queue full" in sample.error


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([TEXT, b'data: {"error": {"message": "worker died"}}\n\n'], "worker died"),
        ([TEXT, USAGE], "without [DONE]"),
        ([TEXT, DONE], "no usage"),
        ([b"data: {not json}\n\n"], "HttpParserCallbackError"),
    ],
)
async def test_a_stream_that_is_not_whole_is_an_error(events: list[bytes], sentence: str) -> None:
    async with serving(streaming(*events)) as (_, client):
        sample = await client.complete([1], 3)
    assert sample.error is not None
    assert sentence in sample.error


async def test_a_connection_lost_mid_answer_is_an_error_with_what_came_before() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(TEXT))
        await writer.drain()
        writer.close()

    async with serving(answer) as (_, client):
        sample = await client.complete([1], 3)
    assert sample.error is not None
    assert "ConnectionResetError" in sample.error
    assert len(sample.arrivals) == 1


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with serving(streaming()) as (_, client):
        pass
    sample = await client.complete([1], 3)
    assert sample.error is not None
