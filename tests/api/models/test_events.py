import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from api.models.conftest import GOOD, error_of, post
from api.raw import connected, until
from headrace.api.models import events
from headrace.api.models.events import ModelEvents, with_pauses
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.registry.status import ModelStatus
from headrace.registry.watch import Watchers

PATH = "/api/v1/models/events"


def status(model_id: str = "chat@1", **fields: Any) -> ModelStatus:
    name, _, version = model_id.partition("@")
    known = {"state": "loading", **fields}
    return ModelStatus(model_id=model_id, name=name, version=int(version), **known)


class Told:
    """The part of a registry that is watched."""

    def __init__(self, *statuses: ModelStatus) -> None:
        self.watchers = Watchers()
        self.watch = self.watchers.watch
        self.statuses = lambda: list(statuses)


class Reader:
    """An ASGI client that may stop reading, and may leave."""

    def __init__(self, app: ModelEvents) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.answer = asyncio.create_task(app({"type": "http"}, self._receive, self._send))

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()

    @property
    def models(self) -> list[dict[str, Any]]:
        lines = self.body.splitlines()
        return [json.loads(each.removeprefix("data: ")) for each in lines if each[:4] == "data"]

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.messages.append(message)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def models_of(
    answer: httpx.Response, enough: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            seen.append(json.loads(line.removeprefix("data: ")))
            if enough(seen[-1]):
                break
    return seen


async def test_a_load_is_told_from_its_beginning_to_its_end(http: httpx.AsyncClient) -> None:
    async with http.stream("GET", PATH) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        await post(http, "load", name="chat", source=GOOD)
        seen = await models_of(answer, lambda model: model["state"] == "active")
    states = list(dict.fromkeys(model["state"] for model in seen))
    assert states == ["loading", "health_check", "ready", "active"]
    assert {model["model_id"] for model in seen} == {"chat@1"}


async def test_what_is_there_is_told_first(http: httpx.AsyncClient, registry: Registry) -> None:
    await registry.load(ModelSpec(name="chat", source=GOOD), who="test")
    async with http.stream("GET", PATH) as answer:
        (model,) = await models_of(answer, lambda _: True)
    assert model.keys() == (await http.get("/api/v1/models/chat@1")).json().keys()


async def test_an_event_has_a_name_and_one_line_of_data() -> None:
    told = Told(status("chat@1", reason="two\nlines"))
    reader = Reader(ModelEvents(told))
    await until(lambda: reader.models)
    name, data, *rest = reader.body.split("\n")
    assert (name, rest) == ("event: model", ["", ""])
    assert json.loads(data.removeprefix("data: "))["reason"] == "two\nlines"
    told.watchers.close()
    await reader.answer


async def test_a_stream_ends_whole_with_the_registry(
    http: httpx.AsyncClient, registry: Registry
) -> None:
    async with http.stream("GET", PATH) as answer:
        await registry.close()
        assert await answer.aread() == b""  # and no error for a stream cut short


async def test_what_is_silent_is_kept_alive_by_comments() -> None:
    told = Told()
    reader = Reader(ModelEvents(told, keep_alive=0.001))
    await until(lambda: reader.body.startswith(": \n\n: \n\n"))
    told.watchers.close()
    await reader.answer
    assert reader.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_reader_that_leaves_is_watched_for_no_more() -> None:
    told = Told(status())
    app = ModelEvents(told)
    reader = Reader(app)
    await until(lambda: reader.models)
    reader.left.set()
    await reader.answer
    assert (app._num_readers, len(told.watchers._readers)) == (0, 0)


async def test_a_connection_that_is_lost_frees_its_place(
    url: str, http: httpx.AsyncClient, registry: Registry
) -> None:
    async with connected(url) as (reader, writer):
        writer.write(b"GET %s HTTP/1.1\r\nHost: test\r\n\r\n" % PATH.encode())
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: registry._watchers._readers)
    await until(lambda: not registry._watchers._readers)
    assert (await http.get("/health/live")).status_code == 200


async def test_a_slow_reader_misses_steps_but_not_the_last_state() -> None:
    told = Told(status())
    reader = Reader(ModelEvents(told))
    await until(lambda: reader.models)
    reader.reads.clear()
    for percent in range(101):
        told.watchers.tell(status(progress=percent / 100))
        await asyncio.sleep(0)
    reader.reads.set()
    await until(lambda: reader.models[-1]["progress"] == 1.0)
    assert len(reader.models) < 10
    told.watchers.close()
    await reader.answer


async def test_a_reader_that_stands_still_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLOWEST_READER", 0.01)
    told = Told(status())
    app = ModelEvents(told)
    reader = Reader(app)
    await until(lambda: reader.models)
    reader.reads.clear()
    told.watchers.tell(status(progress=1.0))
    await reader.answer
    assert reader.messages[-1]["more_body"]
    assert (app._num_readers, len(told.watchers._readers)) == (0, 0)


async def test_there_is_a_bound_to_those_who_watch(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_READERS", 1)
    async with http.stream("GET", PATH):
        refused = await http.get(PATH)
        assert error_of(refused)[:2] == (503, "unavailable")
        assert refused.headers["retry-after"] == "15"


async def test_items_come_in_order_whatever_the_pauses() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            await asyncio.sleep(0.005 * (number % 2))
            yield number

    seen = [item async for item in with_pauses(numbers(), 0.001)]
    assert [item for item in seen if item is not None] == list(range(5))
    assert None in seen
