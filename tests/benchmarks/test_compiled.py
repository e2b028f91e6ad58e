import asyncio
import os
from pathlib import Path

import pytest
from harness import compiled
from harness.client import CompletionClient, HttpClient
from harness.compiled import MissingCompilerError, build
from programs import load, running_stub
from scripted_server import DONE, HEAD, TEXT, Answer, chunk, listening, streaming

COMPLETIONS = "/v1/completions"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"
ERROR = b'data: {"error": {"message": "no"}}\n\n'


async def post(url: str, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    http = HttpClient(url)
    pieces: list[bytes] = []
    status = await http.exchange("POST", path, pieces.append, body)
    http.close()
    return status, b"".join(pieces)


async def test_the_stub_streams_as_many_events_as_asked_for_and_its_usage(programs: Path) -> None:
    async with running_stub(programs, "--events", "5", "--gap-us", "0") as url:
        http = HttpClient(url)
        sample = await CompletionClient(http, "stub").complete("Why?", 5)
        http.close()
    assert sample.error is None
    assert len(sample.arrivals) == sample.completion_tokens == 5


async def test_the_stub_leaves_the_usage_out_unless_asked(programs: Path) -> None:
    async with running_stub(programs, "--events", "3", "--gap-us", "0") as url:
        _, body = await post(url, "/v1/chat/completions", {"stream": True})
    *events, end = body.removesuffix(b"\n\n").split(b"\n\n")
    assert end == b"data: [DONE]"
    assert [event.count(b'"delta":{"content":" mill"}') for event in events] == [1, 1, 1]
    assert b'"finish_reason":"length"' in events[-1]


async def test_text_that_speaks_of_streams_asks_for_none(programs: Path) -> None:
    async with running_stub(programs) as url:
        status, body = await post(url, COMPLETIONS, {"prompt": '"stream": true', "stream": False})
    assert (status, body[:1], body[-1:]) == (200, b"{", b"}")


async def test_the_stub_answers_for_its_health_and_its_models(programs: Path) -> None:
    async with running_stub(programs) as url:
        http = HttpClient(url)
        assert await http.get("/health") == (200, b'{"status":"ok"}')
        assert b'"id":"stub"' in (await http.get("/v1/models"))[1]
        assert (await http.get("/elsewhere"))[0] == 404
        http.close()


async def test_requests_sent_together_are_answered_in_turn(programs: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    asked = [b'{"stream": true}', b"{}"]
    async with running_stub(programs, "--events", "2") as url:
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"".join(head % len(body) + body for body in asked))
        assert b"text/event-stream" in await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert b"application/json" in await reader.readuntil(b"}}")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("connections", [1, 20])
async def test_every_user_of_the_load_gets_whole_streams(programs: Path, connections: int) -> None:
    async with running_stub(programs, "--events", "4", "--gap-us", "500") as url:
        found = await load(programs, url + COMPLETIONS, connections=connections, events=4)
    assert (found.num_errors, found.num_connections) == (0, connections)
    assert found.num_requests >= connections
    assert found.num_events >= 4 * found.num_requests
    assert found.first_event_ms.p50 is not None
    assert found.gap_ms.p50 is not None


async def test_the_load_counts_whole_answers(programs: Path) -> None:
    async with running_stub(programs) as url:
        found = await load(programs, url + COMPLETIONS, body="{}", stream=0)
    assert (found.num_errors, found.num_connections, found.num_events) == (0, 1, 0)
    assert found.num_requests > 1
    assert found.latency_ms.p50 is not None


def raw(answer: bytes, *, closes: bool = False) -> Answer:
    async def send(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if closes:
            writer.close()

    return send


async def fault(programs: Path, answer: Answer) -> str | None:
    async with listening(answer) as server:
        found = await load(programs, server.url + COMPLETIONS, events=2)
    assert found.num_requests == 0
    return found.first_error


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([TEXT, DONE], "1 events instead of 2"),
        ([TEXT, TEXT, TEXT, DONE], "3 events instead of 2"),
        ([TEXT, TEXT], "a stream that does not end with [DONE]"),
        ([TEXT, DONE, TEXT], "a stream that does not end with [DONE]"),
        ([TEXT, TEXT, DONE, b"data: "], "a stream that does not end with [DONE]"),
        ([TEXT, ERROR, TEXT, DONE], "an error event"),
    ],
)
async def test_a_stream_that_is_not_whole_is_an_error(
    programs: Path, events: list[bytes], complaint: str
) -> None:
    assert await fault(programs, streaming(*events)) == complaint


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (REFUSED, "status 503"),
        (HEAD + chunk(TEXT) + b"zz\r\n", "an answer that is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "an answer that is not HTTP"),
        (HEAD + chunk(TEXT + TEXT + DONE), "a connection that was lost"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(
    programs: Path, answer: bytes, complaint: str
) -> None:
    assert await fault(programs, raw(answer, closes=True)) == complaint


async def test_events_are_counted_however_the_answer_is_cut(programs: Path) -> None:
    whole = (
        HEAD + chunk(TEXT[:9]) + chunk(TEXT[9:] + TEXT + DONE[:3]) + chunk(DONE[3:]) + chunk(b"")
    )

    async def trickle(_: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(whole), 7):
            writer.write(whole[at : at + 7])
            await writer.drain()
            await asyncio.sleep(0)

    async with listening(trickle) as server:
        found = await load(programs, server.url + COMPLETIONS, events=2)
    assert found.num_errors == 0
    assert found.num_requests >= 1


async def test_a_server_that_closes_after_each_answer_costs_a_connection_each(
    programs: Path,
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    async with listening(raw(answer, closes=True)) as server:
        found = await load(programs, server.url + COMPLETIONS, body="{}", stream=0)
    assert found.num_errors == 0
    assert found.num_connections >= found.num_requests > 1


async def test_where_nobody_listens_the_load_says_so(programs: Path) -> None:
    async with running_stub(programs) as url:
        pass
    found = await load(programs, url + COMPLETIONS, connections=2)
    assert (found.num_errors, found.first_error) == (2, "no connection")


def test_a_program_is_built_again_when_its_source_has_changed(programs: Path) -> None:
    built = (programs / "stub").stat().st_mtime_ns
    assert build("stub", programs).stat().st_mtime_ns == built
    os.utime(programs / "stub", (0, 0))
    assert build("stub", programs).stat().st_mtime > 0


def test_without_a_compiler_it_is_said_what_would_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "find_compiler", lambda: None)
    with pytest.raises(MissingCompilerError, match=r"g\+\+"):
        build("stub", tmp_path)
