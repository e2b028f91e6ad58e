import json

import pytest

from headrace.api.body import decode_json
from headrace.api.openai.requests import (
    MAX_PROMPTS,
    answered_before,
    chat_prompt,
    chat_sampling,
    completion_prompts,
    completion_sampling,
)
from headrace.api.openai.schema import ChatCompletionRequest, CompletionRequest
from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Answered, Chat, Message, SamplingParams


def chat(**fields: object) -> ChatCompletionRequest:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}
    return decode_json(json.dumps(body).encode(), ChatCompletionRequest)


def completion(**fields: object) -> CompletionRequest:
    body = json.dumps({"model": "chat", "prompt": "hi", **fields}).encode()
    return decode_json(body, CompletionRequest)


def test_without_parameters_a_chat_samples_from_the_unchanged_distribution() -> None:
    assert chat_sampling(chat()) == SamplingParams()


def test_without_parameters_a_completion_stops_after_sixteen_tokens() -> None:
    assert completion_sampling(completion()) == SamplingParams(max_tokens=16)


def test_every_parameter_reaches_the_engine() -> None:
    common = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "7": 2.5},
        "seed": -3,
        "n": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "min_tokens": 3,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    expected = SamplingParams(
        max_tokens=9,
        min_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        logit_bias={5: -100.0, 7: 2.5},
        seed=-3,
        logprobs=4,
        n=2,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        skip_special_tokens=False,
    )
    for name in ("max_tokens", "max_completion_tokens"):
        body = chat(**common, logprobs=True, top_logprobs=4, **{name: 9})
        assert chat_sampling(body) == expected
    assert completion_sampling(completion(**common, logprobs=4, max_tokens=9)) == expected


@pytest.mark.parametrize("off", [-1, 0])
def test_top_k_has_two_ways_to_be_off(off: int) -> None:
    assert chat_sampling(chat(top_k=off)).top_k == 0


def test_zero_is_a_value_not_an_absence() -> None:
    assert chat_sampling(chat(temperature=0)).temperature == 0
    assert chat_sampling(chat(logprobs=True, top_logprobs=0)).logprobs == 0
    assert completion_sampling(completion(logprobs=0)).logprobs == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(fields: dict[str, int], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_sampling(chat(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("response_format", {"type": "json_object"}),
        ("functions", [{}]),
        ("function_call", "auto"),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content"}),
        ("web_search_options", {}),
        ("store", True),
        ("service_tier", "priority"),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("guided_json", {}),
        ("structured_outputs", {"json": {}}),
        ("bad_words", ["x"]),
        ("best_of", 3),
        ("use_beam_search", True),
        ("continue_final_message", True),
        ("echo", True),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("suffix", "end"),
        ("prompt", "hi"),
        ("length_penalty", 1.2),
    ],
)
def test_a_known_field_that_is_not_served_is_named(name: str, value: object) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        chat_prompt(chat(**{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "high"),
        ("messages", [{"role": "user", "content": "hi"}]),
        ("max_completion_tokens", 3),
        ("top_logprobs", 2),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("length_penalty", 1.2),
        ("store", True),
        ("suffix", "end"),
    ],
)
def test_a_completion_names_a_field_of_chats_that_it_cannot_serve(name: str, value: object) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        completion_prompts(completion(**{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "messages": None, "max_completion_tokens": None},
        {"top_logprobs": 0, "length_penalty": 1.0, "suffix": "", "store": False},
        {"parallel_tool_calls": True, "prompt_cache_key": "k", "safety_identifier": "s"},
    ],
)
def test_a_completion_takes_fields_of_chats_that_ask_for_nothing(fields: dict[str, object]) -> None:
    assert completion_prompts(completion(**fields)) == ["hi"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "functions": []},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"store": False, "service_tier": "auto", "n": 1},
        {"user": "u", "metadata": {"a": "b"}, "parallel_tool_calls": True},
        {"prompt_cache_key": "k", "safety_identifier": "s", "not_invented_yet": 1},
        {"suffix": "", "prompt": None, "length_penalty": 1, "chat_template_kwargs": {}},
        {"prompt_cache_retention": "24h"},
    ],
)
def test_fields_that_ask_for_nothing_are_taken(fields: dict[str, object]) -> None:
    assert chat_prompt(chat(**fields)) == chat_prompt(chat())


def test_messages_become_plain_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": "c", "tool_calls": [], "refusal": None},
    ]
    assert chat_prompt(chat(messages=messages)) == Chat(
        (
            Message("system", "be kind"),
            Message("user", "ab", "ann"),
            Message("assistant", "c"),
        )
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages.0.content.0",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages.0.role"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages.0.tool_calls"),
    ],
)
def test_a_message_that_cannot_be_served_is_named(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_prompt(chat(messages=[message]))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: object, prompts: list[object]) -> None:
    assert completion_prompts(completion(prompt=prompt)) == prompts


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a", 1]},
        {"prompt": [[1], "a"]},
        {"prompt": [[]]},
        {"prompt": ["a"] * (MAX_PROMPTS + 1)},
        {"best_of": 2},
        {"suffix": "end"},
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        completion_prompts(completion(**fields))


def test_best_of_as_many_as_asked_for_is_no_choice() -> None:
    assert completion_prompts(completion(best_of=2, n=2)) == ["hi"]


def test_null_is_an_absence() -> None:
    assert completion_sampling(completion(max_tokens=None)).max_tokens == 16


def test_a_prompt_is_scored_for_one_answer_only() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion_sampling(completion(echo=True, logprobs=0, n=2))
    assert caught.value.param == "n"


def test_no_tokens_at_all_are_only_for_scoring_a_prompt() -> None:
    assert completion_sampling(completion(max_tokens=0, echo=True)).max_tokens == 0
    with pytest.raises(InvalidRequestError):
        completion_sampling(completion(max_tokens=0))


@pytest.mark.parametrize("key", ["a", "-1", "1.5", "", "\u0663", "2147483648", "9" * 5000])
def test_a_bias_of_what_is_no_token_id_is_named(key: str) -> None:
    with pytest.raises(InvalidRequestError, match=r": a key must be a token id\.$") as caught:
        chat_sampling(chat(logit_bias={"1": 1, key: 1}))
    assert caught.value.param == f"logit_bias.{key[:40]}"


@pytest.mark.parametrize("bias", [101, -100.5, 1e300])
def test_a_bias_out_of_range_is_named_by_its_token(bias: float) -> None:
    with pytest.raises(InvalidRequestError, match="from -100 to 100") as caught:
        completion_sampling(completion(logit_bias={"7": bias}))
    assert caught.value.param == "logit_bias.7"


def test_what_was_answered_before_has_an_entry_for_every_choice() -> None:
    entry = {"token_ids": [4, 5], "num_characters": 2}
    whole = {"is_finished": True, "num_characters": 3}
    known = Answered([4, 5], 2)
    assert answered_before(chat(answered=[entry]), 1) == (known,)
    assert answered_before(chat(answered=[entry, None], n=4), 1) == (known, None, None, None)
    assert answered_before(chat(answered=[None, whole], n=2), 1) == (
        None,
        Answered([], 3, is_finished=True),
    )
    for nothing in (None, [], [None]):
        assert answered_before(chat(answered=nothing), 1) == ()


def test_what_was_answered_before_is_of_one_prompt() -> None:
    body = completion(prompt=["a", "b"], answered=[{"token_ids": [1]}])
    with pytest.raises(InvalidRequestError, match="single prompt"):
        answered_before(body, len(completion_prompts(body)))
    with pytest.raises(InvalidRequestError, match="2 entries, and n=1"):
        answered_before(completion(answered=[None, {"token_ids": [1]}]), 1)


@pytest.mark.parametrize(
    "answered",
    [
        3,
        [3],
        [{"token_ids": [-1]}],
        [{"token_ids": "x"}],
        [{"token_ids": [1 << 31]}],
        [{"num_characters": -1}],
        [{"num_characters": 1 << 40}],
        [None] * 129,
    ],
)
def test_a_wrong_entry_of_what_was_answered_before_is_named(answered: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(answered=answered)
    assert str(caught.value.param).startswith("answered")
