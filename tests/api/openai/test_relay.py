"""Requests that are passed on to upstreams: real servers behind the real router and app."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import structlog
import uvicorn

from api.conftest import running
from api.raw import connected, post, until
from api.scripted import ScriptedModel, ScriptedRegistry, chunk_of, info
from headrace.api.app import create_app
from headrace.api.connection import StreamingProtocol
from headrace.api.openai import relay, routes
from headrace.api.openai.continuation import continuation_of
from headrace.api.openai.keeping import KeptBytes
from headrace.api.trials import Trials
from headrace.endpoints import Migration, RoutingConfig, UpstreamConfig
from headrace.errors import HeadraceError
from headrace.generation import Chunk, GenerationRequest
from headrace.routing.router import VersionRouter
from headrace.settings import Settings
from routing.upstream.misbehaving_server import STREAM_HEAD, MisbehavingServer, Peer

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "a secret prompt"}]}
STREAM = {**CHAT, "stream": True}
JSON = {"Content-Type": "application/json"}
HEAD = {"id": "theirs-1", "object": "chat.completion.chunk", "created": 5, "model": "up-model"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
WHOLE = {
    **HEAD,
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "extra": 1}],
    "usage": USAGE,
}

Script = Callable[[Peer], Awaitable[None]]


def event(content: str, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return f"data: {json.dumps({**HEAD, 'choices': [choice]})}\n\n"


MODELS = json.dumps({"data": [{"id": name} for name in ("up-model", "chat")]})
USAGE_EVENT = f"data: {json.dumps({**HEAD, 'choices': [], 'usage': USAGE})}\n\n"
DONE = "data: [DONE]\n\n"
ANSWER = (event("Wa"), event("ter", "stop"), USAGE_EVENT, DONE)


class RoutedRegistry(ScriptedRegistry):
    """Its one model is a router."""

    router: VersionRouter

    @asynccontextmanager
    async def acquire(self, name: str, deadline: float | None = None) -> AsyncIterator[Any]:
        async with super().acquire(name, deadline):
            yield self.router


class Gateway:
    """Starts upstreams, and a server in front of them."""

    def __init__(self, stack: AsyncExitStack, settings: Settings) -> None:
        self._stack = stack
        self._settings = settings
        self.registry = RoutedRegistry()

    async def upstream(self, script: Script, **options: Any) -> UpstreamConfig:
        async def answer(peer: Peer) -> None:
            await (peer.answer(MODELS) if peer.asked.method == "GET" else script(peer))

        server = await self._stack.enter_async_context(MisbehavingServer(answer))
        self.servers = [*getattr(self, "servers", []), server]
        return UpstreamConfig(
            url=server.url, **{"model": "up-model", "dialect": "compatible", **options}
        )

    async def headrace(self, registry: ScriptedRegistry) -> UpstreamConfig:
        app = create_app(registry, Trials(registry), self._settings)
        config = uvicorn.Config(
            app, port=0, http=StreamingProtocol, lifespan="off", log_config=None
        )
        url = await self._stack.enter_async_context(running(config))
        return UpstreamConfig(url=f"{url}/v1")

    async def before(
        self,
        *upstreams: UpstreamConfig,
        protocol: Any = StreamingProtocol,
        migration: Migration = "text",
    ) -> httpx.AsyncClient:
        """A client of a server before these, which are asked in turn."""
        routing = RoutingConfig(strategy="round_robin", migration=migration)
        router = VersionRouter("chat@1", routing, [], upstreams)
        self._stack.push_async_callback(router.close)
        await asyncio.wait_for(router.start(), 5)
        await until(lambda: all(each.is_taking for each in router.statuses()))
        self.registry.router = router
        app = create_app(self.registry, Trials(self.registry), self._settings)
        config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None)
        self.url = await self._stack.enter_async_context(running(config))
        return await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=self.url, timeout=10, verify=False)
        )

    async def before_two(self, script: Script, migration: Migration = "text") -> httpx.AsyncClient:
        """Before two that can go on with an answer by its text."""
        upstreams = [await self.upstream(script, dialect="vllm") for _ in range(2)]
        return await self.before(*upstreams, migration=migration)

    async def idle(self) -> None:
        """Until no upstream has a request."""
        await until(lambda: not any(each.num_in_flight for each in self.registry.router.statuses()))

    @property
    def asked(self) -> list[Any]:
        """The bodies that reached upstreams."""
        return [r.json for server in self.servers for r in server.requests if r.method == "POST"]


@pytest.fixture
async def gateway(settings: Settings) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        yield Gateway(stack, settings)


async def whole(peer: Peer) -> None:
    await peer.answer(json.dumps(WHOLE))


async def streamed(peer: Peer) -> None:
    await peer.stream(*ANSWER)


async def broken(peer: Peer) -> None:
    """A stream that breaks off after a word."""
    await peer.send(STREAM_HEAD)
    await peer.send_chunk(event("Wa"))
    peer.abort()


def in_turn(*scripts: Script) -> Script:
    """What upstreams do, in the order in which they are asked."""
    turns = iter(scripts)

    async def script(peer: Peer) -> None:
        await next(turns)(peer)

    return script


async def streamed_text(http: httpx.AsyncClient, on_begin: Callable[[], None], **more: Any) -> str:
    """A whole stream; tells when its first piece has come."""
    async with http.stream("POST", "/v1/chat/completions", json={**STREAM, **more}) as answer:
        pieces = answer.aiter_text()
        first = await anext(pieces)
        on_begin()
        return first + "".join([piece async for piece in pieces])


def words(body: str) -> str:
    """The text of a stream, which must be whole."""
    *events, done = body.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(each.removeprefix("data: "))["choices"][0] for each in events]
    assert choices[-1]["finish_reason"]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def error_of(body: str) -> str:
    """The code of the error that a stream ends with."""
    last = body.removesuffix("\n\n").split("\n\n")[-1]
    assert "[DONE]" not in body
    return str(json.loads(last.removeprefix("data: "))["error"]["code"])


async def test_a_body_and_its_answer_go_by_as_they_came(gateway: Gateway) -> None:
    http = await gateway.before(await gateway.upstream(whole))
    asked = {
        **CHAT,
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_object"},
        "their_own": {"é": 10**30},
    }
    answer = await http.post("/v1/chat/completions", json=asked)
    assert (answer.status_code, answer.json()) == (200, WHOLE)
    assert gateway.asked == [{**asked, "model": "up-model"}]
    assert answer.headers["x-headrace-version"] == "chat@1"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("model", ["chat", "up-model"])
async def test_the_very_bytes_go_by_where_nothing_must_differ(gateway: Gateway, model: str) -> None:
    http = await gateway.before(await gateway.upstream(whole, model=model))
    data = json.dumps(CHAT, indent=3).encode()
    headers = {"Content-Type": "application/json"}
    await http.post("/v1/chat/completions", content=data, headers=headers)
    (request,) = [r for r in gateway.servers[0].requests if r.method == "POST"]
    assert (request.body == data) is (model == "chat")


@pytest.mark.parametrize("protocol", [StreamingProtocol, "h11"])
@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_stream_goes_by_with_the_usage_that_was_asked_for(
    gateway: Gateway, protocol: Any, *, wants_usage: bool
) -> None:
    http = await gateway.before(await gateway.upstream(streamed), protocol=protocol)
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    answer = await http.post("/v1/chat/completions", json={**STREAM, **options})
    expected = [each for each in ANSWER if each != USAGE_EVENT or wants_usage]
    assert answer.text == "".join(expected)
    assert gateway.asked[0]["stream_options"] == {"include_usage": True}
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-headrace-version"] == "chat@1"


async def test_other_options_of_a_stream_stay(gateway: Gateway) -> None:
    http = await gateway.before(await gateway.upstream(streamed))
    options = {"continuous_usage_stats": True}
    await http.post("/v1/chat/completions", json={**STREAM, "stream_options": options})
    assert gateway.asked[0]["stream_options"] == {**options, "include_usage": True}


@pytest.mark.parametrize("stream", [True, False])
async def test_the_access_log_tells_the_tokens(gateway: Gateway, *, stream: bool) -> None:
    http = await gateway.before(await gateway.upstream(streamed if stream else whole))
    with structlog.testing.capture_logs() as lines:
        await http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        await until(lambda: lines)
    (line,) = [line for line in lines if line["event"] == "http.request"]
    assert (line["status"], line["model"]) == (200, "chat@1")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 2)
    assert "secret" not in str(lines)


async def test_metrics_count_what_is_passed_on(gateway: Gateway) -> None:
    http = await gateway.before(await gateway.upstream(streamed))
    for _ in range(2):
        await http.post("/v1/chat/completions", json=STREAM)
    text = (await http.get("/metrics")).text
    labels = 'model="chat",version="1"'
    assert f'headrace_requests_total{{finish_reason="stop",{labels}}} 2.0' in text
    assert f"headrace_time_to_first_token_seconds_count{{{labels}}} 2.0" in text
    assert f"headrace_request_duration_seconds_count{{{labels}}} 2.0" in text


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"{", "invalid_value", None),
        (b'{"model":"chat"}', "invalid_value", "messages"),
        (b'{"messages":[]}', "invalid_value", "model"),
        (b'{"model":"chat","messages":[],"stream":1}', "invalid_value", "stream"),
        (b'{"model":"nope","messages":[]}', "model_not_found", "model"),
    ],
)
async def test_what_cannot_be_passed_on_is_refused_here(
    gateway: Gateway, data: bytes, code: str, param: str | None
) -> None:
    http = await gateway.before(await gateway.upstream(whole))
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=data, headers=headers)
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)
    assert not gateway.asked


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"chat","messages":[],"model":"dear"}',
        b'{"model":"chat","messages":[],"Model":"dear"}',
        b'{"model":"chat","messages":[],"Stream":true}',
    ],
)
async def test_what_the_upstream_could_read_otherwise_is_refused_here(
    gateway: Gateway, data: bytes
) -> None:
    http = await gateway.before(await gateway.upstream(whole, model="chat"))
    served = data.replace(b'"dear"', b'"chat"')  # so that it is there
    answer = await http.post("/v1/chat/completions", content=served, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert not gateway.asked


async def test_a_body_that_is_nested_too_deeply_holds_nothing(gateway: Gateway) -> None:
    http = await gateway.before(await gateway.upstream(streamed, model="chat"))
    for depth in range(700, 1000, 6):
        nested = b"[" * depth + b"]" * depth
        for field in (b'"prompt":', b'"prompt":"","x":'):
            data = b'{"model":"chat","stream":true,%s%s}' % (field, nested)
            answer = await http.post("/v1/completions", content=data, headers=JSON)
            if answer.status_code != 200:
                assert answer.status_code == 400
                assert "nested too deeply" in answer.json()["error"]["message"]
            await gateway.idle()
    assert answer.status_code == 400


async def test_an_upstreams_refusal_is_the_clients_to_see(gateway: Gateway) -> None:
    async def refuse(peer: Peer) -> None:
        said = {"error": {"message": "No such tool.", "param": "tools", "code": 400}}
        await peer.answer(json.dumps(said), "400 Bad Request")

    http = await gateway.before(await gateway.upstream(refuse))
    answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 400
    assert "No such tool." in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("body", ["<html>", "{}", '{"choices":[]}', '{"error":{"message":"x"}}'])
async def test_what_is_no_answer_is_not_passed_on(gateway: Gateway, body: str) -> None:
    async def odd(peer: Peer) -> None:
        await peer.answer(body)

    http = await gateway.before(await gateway.upstream(odd))
    answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code in (500, 503)
    assert answer.json()["error"]["code"] in ("upstream_broken", "upstream_fault")


async def test_a_whole_answer_that_breaks_off_is_asked_for_again(gateway: Gateway) -> None:
    async def half(peer: Peer) -> None:
        data = json.dumps(WHOLE)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        await peer.send(f"{head}\r\n\r\n{data[:20]}")
        peer.abort()

    http = await gateway.before_two(in_turn(half, whole))
    answer = await http.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()) == (200, WHOLE)
    assert len(gateway.asked) == 2


async def test_completions_have_a_choice_for_every_prompt(gateway: Gateway) -> None:
    async def two(peer: Peer) -> None:
        choices = [{"index": n, "text": "x", "finish_reason": "length"} for n in range(2)]
        events = [f"data: {json.dumps({**HEAD, 'choices': [each]})}\n\n" for each in choices]
        await peer.stream(*events, DONE)

    http = await gateway.before(await gateway.upstream(two))
    for prompt, is_whole in ((["a", "b"], True), (["a", "b", "c"], False)):
        asked = {"model": "chat", "prompt": prompt, "stream": True}
        answer = await http.post("/v1/completions", json=asked)
        assert ("[DONE]" in answer.text) is is_whole
        assert ("upstream_broken" in answer.text) is not is_whole
    assert [r.path for r in gateway.servers[0].requests if r.method == "POST"] == [
        "/v1/completions"
    ] * 2


async def test_a_client_that_leaves_ends_its_request_there(gateway: Gateway) -> None:
    gone = asyncio.Event()

    async def endless(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(event("Wa"))
        await peer.gone()
        gone.set()

    await gateway.before(await gateway.upstream(endless))
    async with connected(gateway.url) as (reader, writer):
        writer.write(post(STREAM))
        await reader.readuntil(b"Wa")
    await asyncio.wait_for(gone.wait(), 5)
    await asyncio.wait_for(gateway.registry.free.wait(), 5)


async def test_a_slow_reader_holds_its_upstream_up_and_gets_everything(gateway: Gateway) -> None:
    piece, count = event("x" * 10_000), 500

    async def much(peer: Peer) -> None:
        await peer.stream(*[piece] * count, *ANSWER)

    await gateway.before(await gateway.upstream(much))
    async with connected(gateway.url, receive_buffer=1 << 12) as (reader, writer):
        writer.write(post(STREAM))
        body = bytearray()
        while b"[DONE]" not in body[-100:]:
            body += await asyncio.wait_for(reader.read(1 << 18), 5)
    assert body.count(b"x") == pytest.approx(10_000 * count, rel=1e-3)  # some are cut by framing


# An upstream that dies in the middle of a stream


async def test_a_stream_goes_on_by_its_text(gateway: Gateway) -> None:
    async def rest(peer: Peer) -> None:
        assert peer.asked.json["messages"][-1] == {"role": "assistant", "content": "Wa"}
        await peer.stream(event("ter"), event("!", "stop"), USAGE_EVENT, DONE)

    http = await gateway.before_two(in_turn(broken, rest))
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert words(answer.text) == "Water!"
    bodies = [json.loads(each[6:]) for each in answer.text.split("\n\n")[:-2]]
    assert {(each["id"], each["created"], each["model"]) for each in bodies} == {
        ("theirs-1", 5, "up-model")
    }


@pytest.mark.parametrize("more", [{"tools": [{"type": "function"}]}, {"n": 2}, {"seed": "x"}])
async def test_what_cannot_be_gone_on_with_ends_honestly(
    gateway: Gateway, more: dict[str, Any]
) -> None:
    http = await gateway.before_two(in_turn(broken, streamed))
    answer = await http.post("/v1/chat/completions", json={**STREAM, **more})
    assert answer.text.startswith(event("Wa"))
    assert error_of(answer.text).startswith("upstream_")
    assert len(gateway.asked) == 1


@pytest.mark.parametrize("migration", ["off", "tokens"])
async def test_nothing_goes_on_where_that_is_not_allowed(
    gateway: Gateway, migration: Migration
) -> None:
    http = await gateway.before_two(in_turn(broken, streamed), migration)
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert error_of(answer.text).startswith("upstream_")
    assert len(gateway.asked) == 1


@pytest.mark.parametrize(
    ("migration", "more", "keeps"),
    [
        ("text", {}, True),
        ("tokens", {"tools": []}, True),
        ("off", {}, False),
        ("text", {"tools": [{"type": "function"}]}, False),
    ],
)
async def test_nothing_is_kept_of_what_could_not_move(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    migration: Migration,
    more: dict[str, Any],
    *,
    keeps: bool,
) -> None:
    kept_bytes, num_kept = KeptBytes(), -1

    async def look(peer: Peer) -> None:
        nonlocal num_kept
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(event("Wa"))
        await has_begun.wait()
        num_kept = kept_bytes.num_bytes
        await peer.send_chunk("".join(ANSWER[1:]))
        await peer.send_chunk("")

    monkeypatch.setattr(routes, "KeptBytes", lambda: kept_bytes)
    has_begun = asyncio.Event()
    http = await gateway.before_two(look, migration)
    await streamed_text(http, has_begun.set, **more)
    assert (num_kept > len(event("Wa"))) is keeps  # with the body
    assert kept_bytes.num_bytes == 0


async def test_what_was_sent_is_read_beside_the_loop(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[int]()

    def read(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return continuation_of(*args)

    monkeypatch.setattr(relay, "continuation_of", read)
    http = await gateway.before_two(in_turn(broken, streamed))
    await http.post("/v1/chat/completions", json=STREAM)
    assert threads
    assert threading.get_ident() not in threads


async def test_over_what_all_may_keep_a_stream_is_served_but_does_not_move(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeptBytes.__init__, "__defaults__", (10,))
    http = await gateway.before_two(in_turn(streamed, broken))
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert words(answer.text.replace(USAGE_EVENT, "")) == "Water"
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert error_of(answer.text).startswith("upstream_")
    assert len(gateway.asked) == 2


async def test_tokens_of_a_server_that_takes_none_are_gone_on_after_by_their_text(
    gateway: Gateway,
) -> None:
    async def breaks(peer: Peer) -> None:
        choice = {"index": 0, "delta": {"content": "Wa"}, "finish_reason": None, "token_ids": [5]}
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(f"data: {json.dumps({**HEAD, 'choices': [choice]})}\n\n")
        peer.abort()

    async def rest(peer: Peer) -> None:
        assert peer.asked.json["messages"][-1]["content"] == "Wa"
        await peer.stream(event("ter", "stop"), DONE)

    http = await gateway.before_two(in_turn(breaks, rest))
    answer = await http.post("/v1/chat/completions", json={**STREAM, "return_token_ids": True})
    assert words(answer.text) == "Water"
    assert '"token_ids": [5]' in answer.text


async def test_an_answer_goes_on_by_its_text_after_a_second_death(gateway: Gateway) -> None:
    async def dies_again(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(event("te"))
        await asyncio.sleep(0.02)
        peer.abort()

    async def rest(peer: Peer) -> None:
        assert peer.asked.json["messages"][-1]["content"] == "Wate"
        await peer.stream(event("r", "stop"), DONE)

    http = await gateway.before_two(in_turn(broken, dies_again, rest))
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert words(answer.text) == "Water"


async def test_an_error_in_the_middle_is_gone_on_after(gateway: Gateway) -> None:
    has_begun = asyncio.Event()

    async def fail(peer: Peer) -> None:
        told = {"error": {"message": "out of memory", "code": 500}}
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(event("Wa"))
        await has_begun.wait()
        await peer.send_chunk(f"data: {json.dumps(told)}\n\n")

    async def rest(peer: Peer) -> None:
        await peer.stream(event("ter", "stop"), DONE)

    http = await gateway.before_two(in_turn(fail, rest))
    assert words(await streamed_text(http, has_begun.set)) == "Water"


async def test_an_event_is_never_cut_in_two(gateway: Gateway) -> None:
    async def half(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        await peer.send_chunk(event("Wa") + event("ter")[:30])
        peer.abort()

    http = await gateway.before(await gateway.upstream(half))
    answer = await http.post("/v1/chat/completions", json=STREAM)
    assert answer.text.startswith(event("Wa") + 'data: {"error":')


class Counting:
    """Models of two of us, which count to ten; the one that is asked first dies at five."""

    def __init__(self, num_streams: int) -> None:
        self._awaited = num_streams
        self._have_begun = asyncio.Event()
        self._dying: ScriptedModel | None = None
        self.models = [ScriptedModel(info("chat@1"), script=self._count) for _ in range(2)]

    def begin(self) -> None:
        """A client has some of its stream."""
        self._awaited -= 1
        if not self._awaited:
            self._have_begun.set()

    @property
    def requests(self) -> list[GenerationRequest]:
        return [request for model in self.models for request in model.requests]

    async def _count(
        self, model: ScriptedModel, request: GenerationRequest
    ) -> AsyncIterator[Chunk]:
        self._dying = self._dying or model
        answered = request.answered[0] if request.answered else None
        for number in range(len(answered.token_ids) if answered else 0, 10):
            if model is self._dying and number == 5:
                await self._have_begun.wait()
                raise HeadraceError("gone")
            yield chunk_of(f" {number}", request, 0, is_last=number == 9, count=10)


@pytest.mark.parametrize("asks_for_ids", [True, False])
async def test_a_stream_goes_on_by_its_tokens_with_one_of_us(
    gateway: Gateway, *, asks_for_ids: bool
) -> None:
    counting = Counting(1)
    http = await gateway.before(
        *[await gateway.headrace(ScriptedRegistry([model])) for model in counting.models]
    )
    more = {"return_token_ids": True} if asks_for_ids else {}
    text = await streamed_text(http, counting.begin, **more)
    assert words(text) == " 0 1 2 3 4 5 6 7 8 9"
    assert ('"token_ids":[7]' in text) is asks_for_ids
    assert text.count('"role":"assistant"') == 1
    assert text.count('"finish_reason":"stop"') == 1
    (answered,) = [request.answered[0] for request in counting.requests if request.answered]
    assert answered is not None
    assert (answered.token_ids, answered.num_characters) == ([7] * 5, len(" 0 1 2 3 4"))


async def test_many_streams_survive(gateway: Gateway) -> None:
    counting = Counting(20)
    http = await gateway.before(
        *[await gateway.headrace(ScriptedRegistry([model])) for model in counting.models]
    )
    answers = await asyncio.gather(*(streamed_text(http, counting.begin) for _ in range(20)))
    assert {words(text) for text in answers} == {" 0 1 2 3 4 5 6 7 8 9"}
    assert any(request.answered for request in counting.requests)


async def test_an_answer_begun_elsewhere_is_for_those_who_can_go_on_with_it(
    gateway: Gateway,
) -> None:
    http = await gateway.before(await gateway.upstream(streamed, dialect="vllm"))
    answered = [{"token_ids": [1], "num_characters": 2}]
    answer = await http.post("/v1/chat/completions", json={**STREAM, "answered": answered})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "answered")
    assert not gateway.asked
