import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send

from api.raw import connected, post, until
from api.scripted import ScriptedModel, ScriptedRegistry, chunk_of
from headrace.api.exchange import Exchange, attach
from headrace.api.middleware import BODIES_ARRIVING, AccessLog, BodyLimit, Exchanges
from headrace.errors import BodyTimeoutError, BodyTooLargeError, HeadraceError, UnavailableError
from headrace.generation import Chunk, GenerationRequest
from headrace.telemetry.metrics import Metrics

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "a secret prompt"}]}


async def test_a_sane_request_id_is_echoed(http: httpx.AsyncClient) -> None:
    answer = await http.get("/version", headers={"X-Request-ID": "trace-1:a.b_c/d"})
    assert answer.headers["x-request-id"] == "trace-1:a.b_c/d"


@pytest.mark.parametrize("request_id", ["", "a" * 129, "a b", 'a"b', "a\tb", "é".encode()])
async def test_an_unsound_request_id_is_replaced(
    http: httpx.AsyncClient, request_id: str | bytes
) -> None:
    answer = await http.get("/version", headers={"X-Request-ID": request_id})
    assert answer.headers["x-request-id"].isalnum()
    assert len(answer.headers["x-request-id"]) == 32


async def test_two_requests_under_one_id_do_not_meet(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    headers = {"X-Request-ID": "same"}
    await asyncio.gather(
        *(http.post("/v1/chat/completions", json=CHAT, headers=headers) for _ in range(2))
    )
    assert len({request.request_id for request in model.requests}) == 2


@pytest.mark.parametrize("path", ["/version", "/nope", "/v1/chat/completions"])
async def test_every_answer_has_an_id_and_security_headers(
    http: httpx.AsyncClient, path: str
) -> None:
    answer = await http.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-request-id"]


async def test_a_body_that_announces_too_much_is_refused_unread(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, "user": "x" * (2 << 20)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["x-request-id"]


async def test_a_chunked_body_is_counted_while_it_comes(http: httpx.AsyncClient) -> None:
    async def pieces() -> object:
        for _ in range(64):
            yield b" " * (1 << 15)

    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=pieces(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_a_chunked_body_within_the_limit_is_read(http: httpx.AsyncClient) -> None:
    async def pieces() -> object:
        for character in json.dumps(CHAT):
            yield character.encode()

    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=pieces(), headers=headers)
    assert answer.status_code == 200


async def test_the_access_log_tells_model_and_tokens_and_no_prompt(
    http: httpx.AsyncClient,
) -> None:
    with structlog.testing.capture_logs() as lines:
        await http.post("/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer key"})
        await until(lambda: lines)
    (line,) = [line for line in lines if line["event"] == "http.request"]
    assert line["status"] == 200
    assert line["model"] == "chat@1"
    assert (line["prompt_tokens"], line["completion_tokens"]) == (11, 6)
    assert line["bytes"] > 100
    assert line["duration_ms"] > 0
    assert "secret" not in str(lines)
    assert "Bearer" not in str(lines)


async def test_the_access_log_tells_the_tokens_of_an_answer_that_failed(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    async def fail(_model: object, request: GenerationRequest) -> AsyncIterator[Chunk]:
        for _ in range(3):
            yield chunk_of("Water", request, 0, is_last=False, count=9)
        raise HeadraceError("It broke.")

    model.script = fail
    with structlog.testing.capture_logs() as lines:
        await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        await until(lambda: lines)
    (line,) = [line for line in lines if line["event"] == "http.request"]
    assert line["completion_tokens"] == 3
    assert "prompt_tokens" not in line


async def test_a_client_that_left_is_logged_as_499(
    url: str, model: ScriptedModel, registry: ScriptedRegistry
) -> None:
    async def never(_model: object, _request: object) -> object:
        await asyncio.Event().wait()
        yield

    model.script = never
    with structlog.testing.capture_logs() as lines:
        async with httpx.AsyncClient(base_url=url, verify=False) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/chat/completions", json=CHAT, timeout=0.2)
        await asyncio.wait_for(registry.free.wait(), 5)
        await until(lambda: lines)
    assert [line["status"] for line in lines if line["event"] == "http.request"] == [499]


async def test_a_client_that_leaves_during_its_upload_is_logged_as_499(url: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with connected(url) as (_, writer):
            writer.write(post({"model": "chat"})[:-5])
            await writer.drain()
        await until(lambda: lines)
    assert [line["status"] for line in lines] == [499]


async def test_a_body_that_never_comes_meets_the_deadline(url: str) -> None:
    unfinished = post({"model": "chat"}).replace(b"Host", b"X-Request-Timeout: 0.1\r\nHost")[:-5]
    async with connected(url) as (reader, writer):
        writer.write(unfinished)
        answer = await asyncio.wait_for(reader.read(), 5)  # until the connection is closed
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"connection: close\r\n" in answer


async def test_a_deadline_after_the_body_has_come_keeps_the_connection(
    url: str, model: ScriptedModel
) -> None:
    async def never(_model: object, _request: object) -> object:
        await asyncio.Event().wait()
        yield

    model.script = never
    asked = post(CHAT).replace(b"Host", b"X-Request-Timeout: 0.1\r\nHost")
    first, rest = asked[:-5], asked[-5:]
    async with connected(url) as (reader, writer):
        for _ in range(2):
            writer.write(first)
            await asyncio.sleep(0)
            writer.write(rest)
            assert b" 504 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            await reader.readuntil(b"}}")


async def test_a_head_that_was_refused_is_not_logged_as_sent() -> None:
    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def refuse(_message: object) -> None:
        raise RuntimeError("Invalid HTTP header value.")

    app = Exchanges(AccessLog(answer, metrics=Metrics("1")), headers=())
    with structlog.testing.capture_logs() as lines:
        with pytest.raises(RuntimeError):
            await app(
                {"type": "http", "method": "GET", "path": "/", "headers": []}, unheard, refuse
            )
        await until(lambda: lines)
    assert [line["status"] for line in lines] == [500]


async def unheard() -> Message:
    raise AssertionError


async def read_all(_scope: object, receive: Receive, _send: object) -> None:
    while (await receive()).get("more_body"):
        pass


def scope() -> Scope:
    scope: Scope = {"type": "http"}
    attach(scope, Exchange(request_id="r"))
    return scope


async def refuse_to_send(_message: object) -> None:
    raise AssertionError


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    limit = BodyLimit(read_all, max_bytes=10, timeout=0.01)
    with pytest.raises(BodyTimeoutError):
        await limit(scope(), asyncio.Event().wait, refuse_to_send)


async def test_a_body_that_is_there_at_once_is_measured_too() -> None:
    class Connection:
        def take_body(self) -> bytes:
            return b"x" * 11

    limit = BodyLimit(read_all, max_bytes=10)
    with pytest.raises(BodyTooLargeError):
        await limit(
            {**scope(), "extensions": {"headrace.connection": Connection()}},
            asyncio.Event().wait,
            refuse_to_send,
        )


async def test_bodies_on_their_way_are_bounded_together_and_freed_at_their_end() -> None:
    limit = BodyLimit(read_all, max_bytes=10)
    rest: asyncio.Event = asyncio.Event()

    async def body() -> None:
        pieces = iter([b"x" * 9, b""])

        async def receive() -> Message:
            piece = next(pieces)
            if not piece:
                await rest.wait()
            return {"type": "http.request", "body": piece, "more_body": bool(piece)}

        await limit(scope(), receive, refuse_to_send)

    bodies = [asyncio.create_task(body()) for _ in range(BODIES_ARRIVING + 1)]
    await until(lambda: limit.num_arriving == 9 * len(bodies))
    with pytest.raises(UnavailableError):
        await body()
    rest.set()
    await asyncio.gather(*bodies)
    assert limit.num_arriving == 0


def test_metrics_of_unknown_paths_and_methods_share_one_label() -> None:
    metrics = Metrics("1")
    metrics.http_request(method="GET", route="unmatched", status=404, seconds=0.1)
    assert b'route="unmatched",status="4xx"' in metrics.exposition([])


async def test_paths_that_do_not_exist_add_no_labels(http: httpx.AsyncClient) -> None:
    for number in range(3):
        await http.get(f"/nope/{number}")
        await http.request("BREW", f"/nope/{number}")
    text = (await http.get("/metrics")).text
    assert "/nope" not in text
    assert "BREW" not in text
