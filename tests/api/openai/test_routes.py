import httpx
import openai
import pytest

from api.scripted import ScriptedModel
from headrace.generation import Answered

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_a_chat_answer_has_every_field_that_openais_has(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="chat", messages=MESSAGES)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "chat"
    assert answer.system_fingerprint == "fp_scripted"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 17
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_several_answers_share_one_prompt(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="chat", messages=MESSAGES, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 18)


async def test_a_stream_tells_usage_when_asked_to(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="chat", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == 6


async def test_logprobs_reach_the_client(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="chat", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == (
        answer.choices[0].message.content
    )
    assert len(tokens[0].top_logprobs) == 2


async def test_completions_of_several_prompts_are_in_order(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="chat", prompt=["one ", "two "], n=2, echo=True, max_tokens=1
    )
    texts = [choice.text for choice in answer.choices]
    assert texts == ["one Water", "one Water", "two Water", "two Water"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (22, 4)


async def test_completions_of_several_prompts_stream_together(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="chat", prompt=[[1, 2], [3]], stream=True, max_tokens=4
    )
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "Water turns the wheel", 1: "Water turns the wheel"}


async def test_token_ids_reach_the_model_as_they_are(
    client: openai.AsyncOpenAI, model: ScriptedModel
) -> None:
    await client.completions.create(model="chat", prompt=[5, 6, 7])
    assert model.requests[0].prompt == [5, 6, 7]


async def test_the_openai_client_sees_our_errors_as_its_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="chat", messages=MESSAGES, temperature=9)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nope", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as tools:
        await client.chat.completions.create(
            model="chat",
            messages=MESSAGES,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert (tools.value.param, tools.value.code) == ("tools", "unsupported_parameter")


async def test_stream_options_belong_to_streams(http: httpx.AsyncClient) -> None:
    body = {"model": "chat", "messages": MESSAGES, "stream_options": {"include_usage": True}}
    answer = await http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")


async def test_models_are_found_by_name_and_by_version(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["chat"]
    assert (await client.models.retrieve("chat")).id == "chat"
    assert (await client.models.retrieve("chat@1")).id == "chat"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("chat@2")


async def test_who_asks_and_the_trace_reach_the_model(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": parent, "tracestate": "a=b"}
    body = {"model": "chat", "messages": MESSAGES, "user": "Ann"}
    await http.post("/v1/chat/completions", json=body, headers=headers)
    await http.post("/api/v1/generate", json={"prompt": "x", "user_id": "Bob"}, headers=headers)
    await http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    assert [asked.user for asked in model.requests] == ["Ann", "Bob", None]
    assert [asked.trace for asked in model.requests] == [headers, headers, {}]


async def test_an_answer_begun_elsewhere_reaches_the_model(
    client: openai.AsyncOpenAI, model: ScriptedModel
) -> None:
    before = [{"token_ids": [7, 7], "num_characters": 11}]
    answer = await client.completions.create(
        model="chat", prompt="x", extra_body={"answered": before, "return_token_ids": True}
    )
    assert model.requests[0].answered == (Answered([7, 7], 11),)
    assert not model.requests[0].was_accepted
    assert answer.choices[0].token_ids == [7] * 6


async def test_an_answer_begun_elsewhere_has_one_prompt(http: httpx.AsyncClient) -> None:
    body = {"model": "chat", "prompt": ["x", "y"], "answered": [{"token_ids": [7]}]}
    answer = await http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "answered")
