"""Streams of the model that real workers stand behind, its channel played by the test."""

import asyncio
import gc
import json
import socket
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.conftest import running
from api.raw import connected, post, until
from api.scripted import ScriptedRegistry, info
from headrace.api.app import create_app
from headrace.api.connection import MAX_PIPELINED, StreamingProtocol
from headrace.api.trials import Trials
from headrace.engine.delivery import Delivery
from headrace.engine.stream import MAX_UNREAD_CHUNKS
from headrace.errors import HeadraceError, WorkerDiedError
from headrace.generation import Chunk, EngineStats, Usage
from headrace.settings import Settings
from headrace.worker import frames
from headrace.worker.remote import RemoteModel

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class PlayedWorker:
    """The worker's end of the channel: what was asked of it, and steps to answer with."""

    def __init__(self) -> None:
        self.model = RemoteModel(100)
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.model.attach(self, info())

    def send(self, data: bytes) -> None:
        match frames.TO_WORKER.decode(data):
            case frames.Generate(request):
                self.asked.append(request.request_id)
            case frames.Abort(request_ids):
                self.aborted += request_ids

    @property
    def forwards(self) -> bool:
        """Whether every stream passes on what comes with no turn of the loop."""
        streams = self.model._streams._streams.values()
        return all(stream._take is not None for stream in streams)

    def say(self, text: str, *, to: Iterable[str] | None = None, last: bool = False) -> None:
        chunk = Chunk(
            0,
            text,
            [7],
            finish_reason="stop" if last else None,
            usage=Usage(1, 1) if last else None,
        )
        self.step(Delivery(each, chunk) for each in to or self.asked)

    def fail(self, error: HeadraceError) -> None:
        self.step(Delivery(each, error=error) for each in self.asked)

    def step(self, deliveries: Iterable[Delivery]) -> None:
        self.model.receive_step(frames.Step(list(deliveries), EngineStats()))


@pytest.fixture
def worker(registry: ScriptedRegistry) -> PlayedWorker:
    played = PlayedWorker()
    registry.models = [played.model]
    return played


def text_of(body: str) -> str:
    *events, done = [e.removeprefix("data: ") for e in body.strip().split("\n\n")]
    assert done == "[DONE]"
    return "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events)


@pytest.mark.parametrize("protocol", [StreamingProtocol, "httptools", "h11"])
async def test_a_stream_is_the_same_under_every_server(
    registry: ScriptedRegistry, settings: Settings, worker: PlayedWorker, protocol: Any
) -> None:
    app = create_app(registry, Trials(registry), settings)
    config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None)
    async with running(config) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
        answering = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await until(lambda: worker.asked)
        for word in ["Water", "", " turns", " é\u2028\n"]:
            worker.say(word)
            await asyncio.sleep(0)
        worker.say(".", last=True)
        answer = await answering
        assert text_of(answer.text) == "Water turns é\u2028\n."
        assert answer.headers["transfer-encoding"] == "chunked"


async def test_the_head_of_a_stream_is_the_same_under_every_server(
    registry: ScriptedRegistry, settings: Settings, worker: PlayedWorker
) -> None:
    heads = []
    for protocol in (StreamingProtocol, "httptools"):
        app = create_app(registry, Trials(registry), settings)
        config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None)
        async with running(config) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
            headers = {"X-Request-ID": "one"}
            answering = asyncio.create_task(
                http.post("/v1/chat/completions", json=CHAT, headers=headers)
            )
            await until(lambda: worker.asked)
            worker.say("Water")
            worker.say(".", last=True)
            worker.asked.clear()
            answer = await answering
            heads.append({**answer.headers, "date": ""})
    assert heads[0] == heads[1]
    assert heads[0]["x-headrace-version"] == "chat@1"
    assert heads[0]["x-frame-options"] == "DENY"


async def test_the_first_piece_is_sent_with_no_turn_of_the_loop(
    url: str, worker: PlayedWorker
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        stream = worker.model._streams._streams[worker.asked[0]]
        worker.say("first")
        assert not stream._unread, "it was written and not kept"
        await asyncio.wait_for(reader.readuntil(b"first"), 5)


async def test_a_piece_is_sent_with_no_turn_of_the_loop(url: str, worker: PlayedWorker) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        worker.say("first")
        await reader.readuntil(b"first")
        await asyncio.sleep(0)
        stream = worker.model._streams._streams[worker.asked[0]]
        for number in range(3):
            worker.say(f"<{number}>")
            assert not stream._unread, "it was written and not kept"
        received = await asyncio.wait_for(reader.readuntil(b"<2>"), 5)
        assert received.count(b"data: ") == 3


async def test_a_client_that_does_not_read_costs_bounded_memory_and_loses_nothing(
    url: str, worker: PlayedWorker
) -> None:
    piece, count = " water" * 1_000, 1_500
    async with connected(url, receive_buffer=1 << 12) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        stream = worker.model._streams._streams[worker.asked[0]]
        for _ in range(count):
            worker.say(piece)
            await asyncio.sleep(0)
            assert len(stream._unread) <= MAX_UNREAD_CHUNKS
        assert stream._unread, "the sockets took everything, this test shows nothing"
        worker.say("!", last=True)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        body = bytearray()
        while b"[DONE]" not in body[-100:]:
            body += await asyncio.wait_for(reader.read(1 << 20), 5)
    assert body.count(b"data: ") < count
    assert body.count(b" water") == pytest.approx(1_000 * count, rel=1e-3)  # framing cuts some


async def test_a_client_that_leaves_in_a_pause_frees_its_slot(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url, receive_buffer=1 << 12) as (_, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        stream = worker.model._streams._streams[worker.asked[0]]
        while not (stream._unread and stream._take is None and stream._reader is None):
            worker.say("x" * 100_000)
            await asyncio.sleep(0)
        writer.transport.abort()
    await asyncio.wait_for(registry.free.wait(), 5)
    await until(lambda: worker.aborted)
    assert worker.aborted == worker.asked


async def test_a_client_that_leaves_in_the_middle_frees_its_slot(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        worker.say("first")
        await reader.readuntil(b"first")
        worker.say("second")
        await reader.readuntil(b"second")
    await asyncio.wait_for(registry.free.wait(), 5)
    await until(lambda: worker.aborted)
    assert worker.aborted == worker.asked
    worker.say("to nobody")


async def test_a_failure_in_the_middle_is_the_last_event(url: str, worker: PlayedWorker) -> None:
    async with httpx.AsyncClient(base_url=url, verify=False) as http:
        answering = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await until(lambda: worker.asked)
        worker.say("first")
        await until(lambda: worker.forwards)
        worker.say("second")
        worker.fail(WorkerDiedError("It is gone."))
        events = (await answering).text.strip().split("\n\n")
    assert "second" in events[-2]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "worker_died"


async def test_a_fault_of_ours_ends_that_stream_and_no_other(
    url: str, worker: PlayedWorker
) -> None:
    async with httpx.AsyncClient(base_url=url, verify=False) as http:
        answers = [
            asyncio.create_task(http.post("/v1/chat/completions", json=CHAT)) for _ in range(2)
        ]
        await until(lambda: len(worker.asked) == 2)
        worker.say("first")
        await until(lambda: worker.forwards)
        spoiled, sound = worker.asked
        unspeakable = Chunk(0, "\ud800", [7])  # no JSON can hold half of a surrogate pair
        worker.step([Delivery(spoiled, unspeakable), Delivery(sound, Chunk(0, " second", [7]))])
        worker.say(".", to=[sound], last=True)
        bodies = [(await answer).text for answer in answers]
    assert sorted("internal_error" in body for body in bodies) == [False, True]
    assert [text_of(body) for body in bodies if "[DONE]" in body] == ["first second."]


async def test_many_streams_get_each_their_own(url: str, worker: PlayedWorker) -> None:
    async with httpx.AsyncClient(base_url=url, verify=False, limits=httpx.Limits()) as http:
        answers = [
            asyncio.create_task(http.post("/v1/chat/completions", json=CHAT)) for _ in range(40)
        ]
        await until(lambda: len(worker.asked) == 40)
        for word in range(50):
            worker.step(
                Delivery(each, Chunk(0, f"{n}.{word} ", [7])) for n, each in enumerate(worker.asked)
            )
            await asyncio.sleep(0)
        worker.say("", last=True)
        texts = {text_of((await answer).text) for answer in answers}
    assert texts == {"".join(f"{n}.{word} " for word in range(50)) for n in range(40)}


async def test_pipelined_streams_are_answered_in_turn(url: str, worker: PlayedWorker) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT) + post(CHAT))
        await until(lambda: worker.asked)
        for number in range(2):
            assert len(worker.asked) == number + 1, "one at a time"
            worker.say(f"answer {number}", to=worker.asked[-1:])
            await reader.readuntil(b"answer %d" % number)
            worker.say("", to=worker.asked[-1:], last=True)
            assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")
            await until(lambda n=number: len(worker.asked) == min(n + 2, 2))


async def test_a_lost_connection_ends_the_running_one_of_pipelined_requests(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT) + post(CHAT))
        await until(lambda: worker.asked)
        worker.say("first")
        await reader.readuntil(b"first")
    async with asyncio.timeout(5):
        while registry.leases:  # reading is paused: only writing can tell that nobody is there
            worker.say("to nobody")
            await asyncio.sleep(0)
    assert len(worker.asked) == 1


async def test_too_many_pipelined_requests_end_the_running_one(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        worker.say("first")
        await reader.readuntil(b"first")
        with structlog.testing.capture_logs() as lines:
            writer.write(post(CHAT) * (MAX_PIPELINED + 1))
            rest = await asyncio.wait_for(reader.read(), 5)
            await asyncio.wait_for(registry.free.wait(), 5)
    assert b"HTTP/1.1" not in rest, "no refusal stands amid an answer"
    refusals = [line["error"] for line in lines if line["event"] == "http.refused"]
    assert refusals == ["too_many_pipelined"]
    assert len(worker.asked) == 1
    await until(lambda: worker.aborted == worker.asked)


async def test_a_refusal_behind_a_request_is_all_that_is_answered(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(WHOLE))
        await until(lambda: worker.asked)
        writer.write(b"GARBAGE\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    await asyncio.wait_for(registry.free.wait(), 5)
    await until(lambda: worker.aborted == worker.asked)


async def test_a_connection_takes_another_request_after_a_stream(
    url: str, worker: PlayedWorker
) -> None:
    async with connected(url) as (reader, writer):
        for number in range(3):
            writer.write(post(CHAT))
            await until(lambda n=number: len(worker.asked) == n + 1)
            worker.say("one", to=worker.asked[-1:])
            await reader.readuntil(b"one")
            worker.say(" two", to=worker.asked[-1:], last=True)
            assert b"[DONE]" in await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)


async def test_a_connection_of_http_1_0_is_closed_after_its_stream(
    url: str, worker: PlayedWorker
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        await until(lambda: worker.asked)
        worker.say("one")
        await asyncio.sleep(0)
        worker.say(" two", last=True)
        body = await asyncio.wait_for(reader.read(), 5)
    assert b"connection: close" in body
    assert b"[DONE]" in body


async def test_a_header_with_a_line_break_is_never_written(url: str, worker: PlayedWorker) -> None:
    worker.model.attach(worker, info("chat@1\r\nset-cookie: a=b"))
    async with connected(url) as (reader, writer):
        writer.write(post(CHAT))
        await until(lambda: worker.asked)
        with structlog.testing.capture_logs() as lines:
            worker.say("first")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            await until(lambda: len(lines) > 1)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in head
    assert [(line["event"], line.get("status")) for line in lines] == [
        ("request.fault", None),
        ("http.request", 500),
    ]


async def test_a_request_that_is_answered_needs_no_collector(
    url: str, worker: PlayedWorker
) -> None:
    gc.collect()
    earlier = num_cycles()
    gc.disable()
    try:
        async with connected(url) as (reader, writer):
            for _ in range(6):
                writer.write(post(CHAT))
                await until(lambda: worker.asked)
                worker.say("one", last=True)
                worker.asked.clear()
                await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            await asyncio.sleep(0)
            assert num_cycles() - earlier <= 2, "the connection keeps its newest, and none else"
    finally:
        gc.enable()


def num_cycles() -> int:
    return sum(type(each) is RequestResponseCycle for each in gc.get_objects())


WHOLE = {**CHAT, "stream": False}


async def whole_answer(reader: asyncio.StreamReader) -> tuple[bytes, Any]:
    """The head and the decoded body of an answer that names its length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    (length,) = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return head, json.loads(await reader.readexactly(int(length.partition(b":")[2])))


async def answers(worker: PlayedWorker, count: int) -> None:
    """Answer whatever is asked until so many were."""
    for number in range(count):
        await until(lambda n=number: len(worker.asked) > n)
        worker.say(f"answer {number}", to=worker.asked[-1:], last=True)


@pytest.mark.parametrize("protocol", ["httptools", "h11"])
async def test_a_whole_answer_is_the_same_under_every_server(
    registry: ScriptedRegistry, settings: Settings, worker: PlayedWorker, protocol: Any
) -> None:
    found = []
    for each in (StreamingProtocol, protocol):
        app = create_app(registry, Trials(registry), settings)
        config = uvicorn.Config(app, port=0, http=each, lifespan="off", log_config=None)
        async with running(config) as url, httpx.AsyncClient(base_url=url, verify=False) as http:
            headers = {"X-Request-ID": "one"}
            answering = asyncio.create_task(answers(worker, 1))
            answer = await http.post("/v1/chat/completions", json=WHOLE, headers=headers)
            await answering
            worker.asked.clear()
            body = {**answer.json(), "id": "", "created": 0}
            found.append((answer.status_code, {**answer.headers, "date": ""}, body))
    assert found[0] == found[1]
    assert found[0][1]["x-headrace-version"] == "chat@1"
    assert found[0][1]["x-frame-options"] == "DENY"


async def test_pipelined_whole_answers_come_in_turn(url: str, worker: PlayedWorker) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(WHOLE) * 3)
        answering = asyncio.create_task(answers(worker, 3))
        for number in range(3):
            _, body = await whole_answer(reader)
            assert body["choices"][0]["message"]["content"] == f"answer {number}"
        await answering


async def test_a_whole_answer_of_http_1_0_closes_its_connection(
    url: str, worker: PlayedWorker
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(post(WHOLE).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answering = asyncio.create_task(answers(worker, 1))
        head, body = await whole_answer(reader)
        assert b"connection: close\r\n" in head
        assert body["usage"]["completion_tokens"] == 1
        assert not await asyncio.wait_for(reader.read(), 5)
        await answering


async def test_no_header_of_a_whole_answer_has_a_line_break(url: str, worker: PlayedWorker) -> None:
    worker.model.attach(worker, info("chat@1\r\nset-cookie: a=b"))
    async with connected(url) as (reader, writer):
        writer.write(post(WHOLE))
        with structlog.testing.capture_logs() as lines:
            answering = asyncio.create_task(answers(worker, 1))
            head, body = await whole_answer(reader)
            await answering
            await until(lambda: len(lines) > 1)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in head
    assert body["error"]["code"] == "internal_error"


async def test_a_whole_answer_to_nobody_ends_its_request(
    url: str, worker: PlayedWorker, registry: ScriptedRegistry
) -> None:
    async with connected(url) as (_, writer):
        writer.write(post(WHOLE))
        await until(lambda: worker.asked)
        writer.transport.abort()
    await asyncio.wait_for(registry.free.wait(), 5)
    await until(lambda: worker.aborted)
    assert worker.aborted == worker.asked
