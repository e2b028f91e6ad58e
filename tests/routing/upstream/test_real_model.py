"""A Headrace in front of a Headrace with a real model says what that one says."""

from collections.abc import AsyncIterator

import httpx
import pytest

from headrace.endpoints import UpstreamConfig
from headrace.errors import ContextLengthError
from headrace.generation import Chat, Message
from headrace.routing.upstream.upstream import Upstream
from real_server import MODEL, RealServer
from routing.upstream.asking import answer, chunks

GREEDY = {"temperature": 0.0, "max_tokens": 24}
PROMPT = "The mill wheel turns because"


@pytest.fixture
async def upstream(server: RealServer) -> AsyncIterator[Upstream]:
    async with Upstream(UpstreamConfig(url=f"{server.url}/v1")) as opened:
        yield opened


def direct(server: RealServer, path: str, **body: object) -> dict[str, object]:
    response = httpx.post(f"{server.url}/v1/{path}", json={"model": MODEL, **body}, timeout=60)
    found: dict[str, object] = response.raise_for_status().json()["choices"][0]
    return found


async def test_greedy_text_is_the_same(server: RealServer, upstream: Upstream) -> None:
    got = await answer(upstream, PROMPT, **GREEDY)
    assert got.text == direct(server, "completions", prompt=PROMPT, **GREEDY)["text"]
    assert got.finish_reason == "length"
    assert got.usage is not None
    assert got.usage.completion_tokens == 24


async def test_token_ids_give_the_same_as_their_text(upstream: Upstream) -> None:
    token_ids = await upstream.tokenize(PROMPT)
    by_text = await answer(upstream, PROMPT, **GREEDY)
    by_tokens = await answer(upstream, token_ids, **GREEDY)
    assert by_tokens.text == by_text.text
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == len(token_ids)


async def test_a_greedy_chat_is_the_same(server: RealServer, upstream: Upstream) -> None:
    got = await answer(upstream, Chat((Message("user", "Name a river."),)), **GREEDY)
    messages = [{"role": "user", "content": "Name a river."}]
    said = direct(server, "chat/completions", messages=messages, **GREEDY)["message"]
    assert said == {"role": "assistant", "content": got.text, "refusal": None}


async def test_a_seed_gives_the_same_again(upstream: Upstream) -> None:
    first, second = [
        await answer(upstream, PROMPT, seed=7, temperature=1.0, max_tokens=16) for _ in range(2)
    ]
    assert first.text == second.text


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(
    upstream: Upstream,
) -> None:
    learned = await upstream.learn()
    with pytest.raises(ContextLengthError, match=str(learned.max_model_len)):
        await chunks(upstream, [1] * (learned.max_model_len + 1))
