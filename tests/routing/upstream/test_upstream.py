"""The routes of an upstream besides generation, and what a request carries."""

import asyncio
import json
import re
from typing import Any

import pytest

from headrace.errors import DeadlineError, NotReadyError, UnsupportedParameterError
from headrace.generation import Chat, Message
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)
from routing.upstream.asking import answer, chunks, request
from routing.upstream.conftest import KEY, Start
from routing.upstream.misbehaving_server import WHOLE, Peer, Script

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = Chat((Message("user", "Hi"),))


def serving(routes: dict[str, Any]) -> Script:
    """Answer "METHOD /path" with a status or JSON; completions with a stream."""

    async def answer_by_route(peer: Peer) -> None:
        found = routes.get(f"{peer.asked.method} {peer.asked.path}")
        if peer.asked.path.endswith("completions"):
            await peer.stream(*WHOLE)
        elif isinstance(found, int | None):
            await peer.answer("", f"{found or 404} Status")
        else:
            await peer.answer(json.dumps(found))

    return answer_by_route


def listing(*cards: dict[str, Any]) -> dict[str, Any]:
    return {"GET /v1/models": {"object": "list", "data": list(cards)}}


async def hang(peer: Peer) -> None:
    await peer.gone()


# What a request carries


async def test_a_request_carries_its_id_its_time_and_its_trace(start: Start) -> None:
    upstream, server = await start(serving({}))
    stream = upstream.generate(
        request(within=50.0, trace={"traceparent": PARENT, "tracestate": "a=1", "cookie": "x"})
    )
    assert [chunk async for chunk in stream]
    headers = server.requests[0].headers
    assert (headers["traceparent"], headers["tracestate"]) == (PARENT, "a=1")
    assert headers["x-request-id"] == "r1"
    assert 0 < float(headers["x-request-timeout"]) <= 50
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "cookie" not in headers


@pytest.mark.parametrize(
    "trace",
    [
        {},
        {"traceparent": "00-xyz"},
        {"traceparent": PARENT + "\r\nEvil: 1"},
        {"tracestate": "a=1"},
    ],
)
async def test_a_malformed_trace_and_a_strange_id_are_left_out(
    start: Start, trace: dict[str, str]
) -> None:
    upstream, server = await start(serving({}))
    assert [c async for c in upstream.generate(request(request_id="a\r\nb: c", trace=trace))]
    named = {"traceparent", "tracestate", "evil", "b", "x-request-id", "x-request-timeout"}
    assert not named & set(server.requests[0].headers)


async def test_a_malformed_state_does_not_cost_the_parent(start: Start) -> None:
    upstream, server = await start(serving({}))
    trace = {"traceparent": PARENT, "tracestate": "a\r\nEvil: 1"}
    assert [chunk async for chunk in upstream.generate(request(trace=trace))]
    headers = server.requests[0].headers
    assert headers["traceparent"] == PARENT
    assert not {"tracestate", "evil"} & set(headers)


# What it serves


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [
        ("vllm", "vllm"),
        ("llamacpp", "llama.cpp"),
        ("headrace", "headrace"),
        ("headrace-gateway", "headrace"),
        ("system", "openai"),
        ("somebody", "compatible"),
        (None, "compatible"),
        (7, "compatible"),
    ],
)
async def test_the_list_of_models_tells_the_dialect(
    start: Start, owner: object, dialect: str
) -> None:
    routes = listing({"id": "other"}, {"id": "m", "owned_by": owner, "max_model_len": 4096})
    upstream, _ = await start(serving(routes), dialect=None)
    with pytest.raises(NotReadyError, match="upstream up"):
        _ = upstream.info
    info = await upstream.learn()
    assert (info.model_id, info.executor) == ("m", f"upstream-{dialect}")
    assert info.max_model_len == 4096
    assert upstream.info is info


@pytest.mark.parametrize(
    ("owner", "takes_tokens"), [("headrace", True), ("headrace-gateway", False), ("vllm", False)]
)
async def test_only_one_that_generates_by_itself_goes_on_after_tokens(
    start: Start, owner: str, *, takes_tokens: bool
) -> None:
    routes = listing({"id": "m", "owned_by": owner})
    upstream, server = await start(serving(routes), dialect=None)
    assert not upstream.takes_tokens, "nobody knows yet what it is"
    await answer(upstream)
    assert upstream.takes_tokens is takes_tokens
    asked_for_ids = server.requests[-1].json.get("return_token_ids", False)
    assert asked_for_ids is (owner != "headrace-gateway")


async def test_the_list_is_asked_for_once_before_the_first_request(start: Start) -> None:
    routes = listing({"id": "only", "owned_by": "headrace"})
    upstream, server = await start(serving(routes), dialect=None, model=None)
    for _ in range(2):
        assert (await answer(upstream, top_k=3)).text == "Hello you"
    assert [asked.path for asked in server.requests] == [
        "/v1/models",
        "/v1/completions",
        "/v1/completions",
    ]
    assert server.requests[1].json["model"] == "only"


async def test_what_it_calls_its_model_is_known_after_one_question(start: Start) -> None:
    routes = listing({"id": "only", "owned_by": "vllm"})
    upstream, server = await start(serving(routes), dialect=None, model=None)
    for _ in range(2):
        name, dialect = await upstream.known()
        assert (name, dialect.name) == ("only", "vllm")
    assert len(server.requests) == 1


async def test_a_server_without_a_list_gets_common_words_only(start: Start) -> None:
    upstream, _ = await start(serving({}), dialect=None)
    assert (await answer(upstream)).text == "Hello you"
    with pytest.raises(UnsupportedParameterError, match="top_k"):
        await chunks(upstream, top_k=3)


@pytest.mark.parametrize("cards", [[], [{"id": "a"}, {"id": "b"}]])
async def test_without_a_name_there_must_be_one_model(start: Start, cards: list[Any]) -> None:
    upstream, _ = await start(serving(listing(*cards)), model=None)
    with pytest.raises(UpstreamRefusedError, match=f"it lists {len(cards)} models"):
        await upstream.learn()


@pytest.mark.parametrize("listed", [{"data": 3}, [], {"data": [{"id": 7}]}, "x"])
async def test_a_list_that_makes_no_sense_is_broken(start: Start, listed: object) -> None:
    upstream, _ = await start(serving({"GET /v1/models": listed}), dialect=None)
    with pytest.raises(UpstreamBrokenError, match=re.escape("GET /v1/models makes no sense")):
        await chunks(upstream)


async def test_a_list_that_never_comes_is_given_up(start: Start) -> None:
    upstream, _ = await start(hang, dialect=None, probe_timeout=0.05)
    with pytest.raises(UpstreamUnreachableError):
        await chunks(upstream)
    with pytest.raises(DeadlineError):
        await chunks(upstream, within=0.02)


async def test_a_list_that_comes_drop_by_drop_is_given_up(start: Start) -> None:
    async def drip(peer: Peer) -> None:
        await peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await peer.send(" ")
            await asyncio.sleep(0.001)

    upstream, _ = await start(drip, probe_timeout=0.1)
    with pytest.raises((UpstreamUnreachableError, UpstreamBrokenError)):
        await upstream.learn()


async def test_llama_cpp_tells_its_vocabulary(start: Start) -> None:
    card = {"id": "m", "owned_by": "llamacpp", "meta": {"n_vocab": 32000, "n_ctx_train": 8192}}
    upstream, _ = await start(serving(listing(card)), dialect=None)
    info = await upstream.learn()
    assert (info.vocab_size, info.max_model_len) == (32000, None)


# Health


@pytest.mark.parametrize(
    "routes",
    [
        {"GET /health": {"status": "ok"}},
        {"GET /health": 405} | listing({"id": "m"}),
        {"GET /health": 403} | listing({"id": "m"}),
        listing({"id": "m"}),
    ],
)
async def test_a_server_that_answers_is_healthy(start: Start, routes: dict[str, Any]) -> None:
    upstream, _ = await start(serving(routes))
    await upstream.probe()


@pytest.mark.parametrize(
    ("routes", "kind"),
    [({"GET /health": 503} | listing(), UpstreamBusyError), ({}, UpstreamRefusedError)],
)
async def test_a_server_that_says_so_is_not(
    start: Start, routes: dict[str, Any], kind: type[Exception]
) -> None:
    upstream, _ = await start(serving(routes))
    with pytest.raises(kind):
        await upstream.probe()


@pytest.mark.parametrize("health", [401, 403, 404])
@pytest.mark.parametrize("models", [401, 403])
async def test_a_server_that_refuses_our_key_is_not_healthy(
    start: Start, health: int, models: int
) -> None:
    routes = {"GET /health": health, "GET /v1/models": models}
    upstream, _ = await start(serving(routes))
    with pytest.raises(UpstreamRefusedError, match=f"refused us with status {models}"):
        await upstream.probe()


async def test_a_server_that_does_not_answer_is_not_healthy(start: Start) -> None:
    upstream, _ = await start(hang, probe_timeout=0.05)
    with pytest.raises(UpstreamUnreachableError):
        await upstream.probe()


# Tokens


@pytest.mark.parametrize(
    ("dialect", "asked", "text"),
    [
        ("vllm", {"model": "m", "prompt": "Hi", "add_special_tokens": False}, {"prompt": "Hi"}),
        ("headrace", {"model": "m", "prompt": "Hi", "add_special_tokens": False}, {"text": "Hi"}),
        ("llama.cpp", {"model": "m", "content": "Hi", "add_special": False}, {"content": "Hi"}),
    ],
)
async def test_tokens_and_back(
    start: Start, dialect: str, asked: dict[str, Any], text: dict[str, str]
) -> None:
    routes = {"POST /tokenize": {"tokens": [5, 6]}, "POST /detokenize": text}
    upstream, server = await start(serving(routes), dialect=dialect)
    assert await upstream.tokenize("Hi", add_special_tokens=False) == [5, 6]
    assert server.requests[-1].json == asked
    assert await upstream.detokenize([5, 6]) == "Hi"
    assert server.requests[-1].json == {"model": "m", "tokens": [5, 6]}
    assert await upstream.tokenize([7]) == [7]


async def test_a_chat_is_tokenized_where_that_can_be_asked(start: Start) -> None:
    routes = {"POST /tokenize": {"tokens": [5]}}
    upstream, server = await start(serving(routes))
    assert await upstream.tokenize(CHAT) == [5]
    assert server.requests[-1].json["messages"] == [{"role": "user", "content": "Hi"}]
    other, _ = await start(serving(routes), dialect="llama.cpp")
    with pytest.raises(UnsupportedParameterError, match="no messages"):
        await other.tokenize(CHAT)


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_tokens_that_nobody_tells_are_refused(start: Start, dialect: str) -> None:
    upstream, server = await start(serving({}), dialect=dialect)
    with pytest.raises(UnsupportedParameterError, match="does not tell its tokens"):
        await upstream.tokenize("Hi")
    with pytest.raises(UnsupportedParameterError, match="does not tell its tokens"):
        await upstream.detokenize([1])
    assert not server.requests


@pytest.mark.parametrize("told", [{"tokens": ["a"]}, {"tokens": [-1]}, {}])
async def test_tokens_that_are_none_are_broken(start: Start, told: dict[str, Any]) -> None:
    upstream, _ = await start(serving({"POST /tokenize": told, "POST /detokenize": told}))
    with pytest.raises(UpstreamBrokenError, match="makes no sense"):
        await upstream.tokenize("Hi")
    with pytest.raises(UpstreamBrokenError, match="makes no sense"):
        await upstream.detokenize([1])
