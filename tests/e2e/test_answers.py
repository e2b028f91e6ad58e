"""What a client of the real server gets."""

import json

import httpx
import openai
import pytest

from real_server import MODEL, RealServer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: RealServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_chat_is_answered_with_sense(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=16
    )
    choice = answer.choices[0]
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_full_answer_says(client: openai.OpenAI) -> None:
    full = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=16
    )
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == full.choices[0].message.content
    assert reasons == [full.choices[0].finish_reason]
    assert usage is not None
    assert full.usage is not None
    assert usage.completion_tokens == full.usage.completion_tokens


def test_a_text_is_continued_streamed_and_not(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 8}
    full = client.completions.create(**options)
    pieces = client.completions.create(**options, stream=True)
    assert "four" in full.choices[0].text
    assert "".join(c.text for p in pieces for c in p.choices) == full.choices[0].text


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": QUESTION, "max_tokens": 16, "seed": 7}
    first, second = (client.chat.completions.create(**options) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content


def test_our_own_generate_names_the_version_that_answered(server: RealServer) -> None:
    body = {"prompt": "The sky is", "max_tokens": 4, "temperature": 0}
    response = httpx.post(f"{server.url}/api/v1/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["X-Headrace-Version"] == f"{MODEL}@1"
    assert response.json()["usage"]["completion_tokens"] == 4


def test_words_survive_tokenize_and_detokenize(server: RealServer) -> None:
    text = "Grüße aus Köln 🦊"
    tokens = httpx.post(f"{server.url}/tokenize", json={"model": MODEL, "prompt": text})
    ids = tokens.raise_for_status().json()["tokens"]
    back = httpx.post(f"{server.url}/detokenize", json={"model": MODEL, "tokens": ids})
    assert text in json.dumps(back.raise_for_status().json(), ensure_ascii=False)


def test_a_repeated_prompt_is_found_in_the_cache(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Repeat after me: " + "water wheel " * 60}]
    options = {"model": MODEL, "messages": messages, "max_tokens": 1}
    client.chat.completions.create(**options)
    usage = client.chat.completions.create(**options).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 100


def test_an_unknown_model_is_a_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="absent"):
        client.chat.completions.create(model="absent", messages=QUESTION)
