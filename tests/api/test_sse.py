import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import openai
import pytest

from api.raw import connected, post, until
from api.scripted import ScriptedModel, ScriptedRegistry, SteppingEngine, chunk_of, say_words
from headrace.errors import QueueFullError, WorkerDiedError
from headrace.generation import Chunk, GenerationRequest

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def events_of(text: str) -> list[str]:
    return [event.removeprefix("data: ") for event in text.strip().split("\n\n")]


async def one_word_then_fail(
    _model: ScriptedModel, request: GenerationRequest
) -> AsyncIterator[Chunk]:
    yield chunk_of("Water", request, 0, is_last=False, count=9)
    raise WorkerDiedError("The worker died.")


async def fail_at_once(_model: ScriptedModel, _request: GenerationRequest) -> AsyncIterator[Chunk]:
    raise WorkerDiedError("Three workers in a row ended with this request.")
    yield


async def one_word_then_break(
    _model: ScriptedModel, request: GenerationRequest
) -> AsyncIterator[Chunk]:
    yield chunk_of("Water", request, 0, is_last=False, count=9)
    raise ZeroDivisionError("a secret prompt")


async def refuse(_model: ScriptedModel, _request: GenerationRequest) -> AsyncIterator[Chunk]:
    raise QueueFullError("The queue is full.", retry_after=3.2)
    yield


async def one_of_two_ends_then_fail(
    _model: ScriptedModel, request: GenerationRequest
) -> AsyncIterator[Chunk]:
    yield chunk_of("Water", request, 0, is_last=True, count=1)
    raise WorkerDiedError("The worker died.")


async def never(_model: ScriptedModel, _request: GenerationRequest) -> AsyncIterator[Chunk]:
    await asyncio.Event().wait()
    yield


async def one_word_then_never(
    _model: ScriptedModel, request: GenerationRequest
) -> AsyncIterator[Chunk]:
    yield chunk_of("Water", request, 0, is_last=False, count=9)
    await asyncio.Event().wait()


async def test_a_stream_and_a_full_answer_hold_the_same_text(client: openai.AsyncOpenAI) -> None:
    full = await client.chat.completions.create(**CHAT)
    stream = await client.chat.completions.create(**CHAT, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == full.choices[0].message.content == "Water turns the wheel é!"


async def test_a_stream_carries_the_headers_that_keep_proxies_from_holding_it_back(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-headrace-version"] == "chat@1"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_before_the_first_chunk_is_a_status_with_a_retry_time(
    http: httpx.AsyncClient, model: ScriptedModel, *, stream: bool
) -> None:
    model.script = refuse
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "4"
    assert answer.json()["error"]["code"] == "queue_full"
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


async def test_a_failure_in_a_stream_is_an_error_event_without_a_false_end(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.script = one_word_then_fail
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    *chunks, last = events_of(answer.text)
    assert answer.status_code == 200
    assert json.loads(last)["error"]["code"] == "worker_died"
    assert "[DONE]" not in answer.text
    assert all(json.loads(chunk)["choices"][0]["finish_reason"] is None for chunk in chunks)


@pytest.mark.parametrize("words", [one_word_then_fail, fail_at_once])
async def test_a_full_answer_that_ends_with_its_workers_is_an_error(
    http: httpx.AsyncClient,
    model: ScriptedModel,
    words: Callable[[ScriptedModel, GenerationRequest], AsyncIterator[Chunk]],
) -> None:
    model.script = words
    answer = await http.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "worker_died")
    assert len(model.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_tells_the_client_no_details(
    http: httpx.AsyncClient, model: ScriptedModel, *, stream: bool
) -> None:
    model.script = one_word_then_break
    answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert "internal_error" in answer.text
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


async def test_a_request_that_is_tried_again_counts_once(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.script = one_of_two_ends_then_fail
    await http.post("/v1/chat/completions", json={**CHAT, "n": 2})
    lines = (await http.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith("headrace_requests_total{")]
    assert line == 'headrace_requests_total{finish_reason="error",model="chat",version="1"} 1.0'


async def test_the_openai_client_raises_what_a_stream_reports(
    client: openai.AsyncOpenAI, model: ScriptedModel
) -> None:
    model.script = one_word_then_fail
    stream = await client.chat.completions.create(**CHAT, stream=True)
    with pytest.raises(openai.APIError, match="worker died"):
        _ = [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_ends_its_generation(
    url: str, model: ScriptedModel, registry: ScriptedRegistry, *, stream: bool
) -> None:
    model.script = never
    async with connected(url) as (_, writer):
        writer.write(post({**CHAT, "stream": stream}))
        await until(lambda: model.running)
    await asyncio.wait_for(model.idle.wait(), 5)
    await asyncio.wait_for(registry.free.wait(), 5)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_its_generation(
    url: str, model: ScriptedModel, http: httpx.AsyncClient
) -> None:
    model.script = one_word_then_never
    async with connected(url) as (reader, writer):
        writer.write(post({**CHAT, "stream": True}))
        await reader.readuntil(b"Water")
    await asyncio.wait_for(model.idle.wait(), 5)
    metrics = (await http.get("/metrics")).text
    assert 'headrace_requests_total{finish_reason="abort",model="chat",version="1"} 1.0' in metrics


async def test_a_client_that_closes_its_sending_side_counts_as_gone(
    url: str, model: ScriptedModel
) -> None:
    model.script = never
    async with connected(url) as (_, writer):
        writer.write(post(CHAT))
        await until(lambda: model.running)
        writer.write_eof()
        await asyncio.wait_for(model.idle.wait(), 5)


async def test_a_slow_reader_is_waited_for_and_gets_everything(
    url: str, registry: ScriptedRegistry
) -> None:
    engine = SteppingEngine(2_000, " water" * 1_000)
    registry.models[0].script = engine.script
    async with connected(url, receive_buffer=1 << 12) as (reader, writer):
        writer.write(post({**CHAT, "stream": True}))
        await until(lambda: engine.open)
        for _ in range(2_000):
            engine.step()
            await asyncio.sleep(0)
        body = b""
        while b"[DONE]" not in body[-100:]:
            body += await asyncio.wait_for(reader.read(1 << 20), 5)
    assert body.count(b" water") == pytest.approx(2_000_000, rel=1e-3)  # some are cut by framing
    assert body.count(b"data: ") < 2_000, "what was not read in time came in larger pieces"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_before_the_first_token_is_a_504(
    http: httpx.AsyncClient, model: ScriptedModel, *, stream: bool
) -> None:
    model.script = never
    answer = await http.post(
        "/v1/chat/completions",
        json={**CHAT, "stream": stream},
        headers={"X-Request-Timeout": "0.05"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert not model.running


async def test_a_deadline_in_a_stream_is_an_error_event(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.script = one_word_then_never
    answer = await http.post(
        "/v1/chat/completions", json={**CHAT, "stream": True}, headers={"X-Request-Timeout": "0.2"}
    )
    assert json.loads(events_of(answer.text)[-1])["error"]["code"] == "deadline_exceeded"


async def test_a_stream_gives_its_model_back(
    http: httpx.AsyncClient, registry: ScriptedRegistry, model: ScriptedModel
) -> None:
    model.script = say_words
    await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert registry.leases == 0
