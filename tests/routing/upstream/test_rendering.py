import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.endpoints import DialectName
from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Chat, GenerationRequest, Message, Prompt, SamplingParams
from headrace.routing.upstream.dialect import DIALECTS
from headrace.routing.upstream.rendering import render

CHAT = Chat((Message("system", "Be brief."), Message("user", "Hi", "Ann")))
ALWAYS = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def body(dialect: DialectName, prompt: Prompt = "Hi", **sampling: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 8, **sampling}
    request = GenerationRequest(
        request_id="r", prompt=prompt, sampling=SamplingParams(**sampling), cache_salt="tenant"
    )
    _, data = render(request, "m", DIALECTS[dialect])
    found: dict[str, Any] = json.loads(data)
    return found


def test_a_chat_has_its_messages() -> None:
    request = GenerationRequest(request_id="r", prompt=CHAT, sampling=SamplingParams(max_tokens=8))
    path, data = render(request, "m", DIALECTS["openai"])
    assert path == "chat/completions"
    assert json.loads(data) == ALWAYS | {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi", "name": "Ann"},
        ],
        "max_completion_tokens": 8,
    }


@pytest.mark.parametrize("prompt", ["Hi", [1, 2, 3]])
def test_a_completion_has_its_text_or_tokens(prompt: Prompt) -> None:
    told = {"prompt": prompt, "max_tokens": 8, "return_token_ids": True}
    assert body("headrace", prompt) == ALWAYS | told


def test_servers_with_defaults_of_their_own_are_told_everything() -> None:
    assert body("vllm") == ALWAYS | {
        "prompt": "Hi",
        "cache_salt": "tenant",
        "return_token_ids": True,
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    told = body("llama.cpp")
    assert (told["repeat_penalty"], told["repeat_last_n"], told["top_k"]) == (1.0, -1, 0)
    assert "cache_salt" not in told


EVERYTHING: dict[str, Any] = {
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "seed": 7,
    "n": 2,
    "stop": ["x"],
    "stop_token_ids": [3],
    "ignore_eos": True,
    "skip_special_tokens": False,
}


@pytest.mark.parametrize("dialect", ["vllm", "headrace"])
@pytest.mark.parametrize("prompt", ["Hi", CHAT])
def test_all_sampling_parameters_are_passed_on(dialect: DialectName, prompt: Prompt) -> None:
    sent = body(dialect, prompt, **EVERYTHING, logit_bias={5: -1.5})
    assert EVERYTHING.items() <= sent.items()
    assert sent["logit_bias"] == {"5": -1.5}


_OF_NEITHER = {"min_tokens", "stop_token_ids", "skip_special_tokens"}
_OF_OUR_KIND = {"top_k", "min_p", "repetition_penalty", "ignore_eos"}


@pytest.mark.parametrize("dialect", ["openai", "compatible", "llama.cpp"])
@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_a_parameter_is_passed_on_or_named_as_unknown(dialect: DialectName, name: str) -> None:
    unknown = _OF_NEITHER if dialect == "llama.cpp" else _OF_NEITHER | _OF_OUR_KIND
    if name in unknown:
        with pytest.raises(UnsupportedParameterError, match=name) as caught:
            body(dialect, **{name: EVERYTHING[name]})
        assert caught.value.param == name
    else:
        sent = body(dialect, **{name: EVERYTHING[name]})
        assert sent[{"repetition_penalty": "repeat_penalty"}.get(name, name)] == EVERYTHING[name]


def test_every_sampling_parameter_has_a_case_here() -> None:
    ruled = {"max_tokens", "logprobs", "logit_bias", "echo"}
    assert set(EVERYTHING) | ruled == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(
    ("dialect", "prompt", "sent"),
    [
        ("vllm", "Hi", {"max_tokens": None}),
        ("llama.cpp", "Hi", {"max_tokens": -1}),
        ("vllm", CHAT, {}),
        ("openai", CHAT, {}),
    ],
)
def test_no_limit_is_said_in_each_ones_way(
    dialect: DialectName, prompt: Prompt, sent: dict[str, Any]
) -> None:
    got = body(dialect, prompt, max_tokens=None)
    assert {k: v for k, v in got.items() if k.startswith("max_")} == sent


@pytest.mark.parametrize("dialect", ["openai", "compatible", "headrace"])
def test_no_limit_is_refused_where_it_would_mean_sixteen(dialect: DialectName) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        body(dialect, max_tokens=None)
    assert caught.value.param == "max_tokens"


def test_logprobs_have_a_form_for_chats_and_one_for_completions() -> None:
    assert body("openai", logprobs=0)["logprobs"] == 0
    chat = body("openai", CHAT, logprobs=3)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    assert body("llama.cpp", logprobs=0)["logprobs"] == 1


def test_an_echo_is_for_completions() -> None:
    assert body("openai", echo=True)["echo"] is True
    for dialect, prompt in (("openai", CHAT), ("vllm", CHAT), ("llama.cpp", "Hi")):
        with pytest.raises(UnsupportedParameterError, match="echo"):
            body(dialect, prompt, echo=True)


def test_a_chat_without_a_generation_prompt_is_not_openais() -> None:
    bare = Chat(CHAT.messages, add_generation_prompt=False)
    assert body("vllm", bare)["add_generation_prompt"] is False
    with pytest.raises(UnsupportedParameterError, match="add_generation_prompt"):
        body("compatible", bare)


@pytest.mark.parametrize("seed", [-1, (1 << 32) - 1])
def test_a_seed_that_would_be_random_there_is_refused(seed: int) -> None:
    with pytest.raises(InvalidRequestError, match="seed must be from 0 to 4294967294"):
        body("llama.cpp", seed=seed)
    assert body("vllm", seed=seed)["seed"] == seed


def test_llama_cpp_takes_biases_as_pairs() -> None:
    assert body("llama.cpp", logit_bias={5: 1.0})["logit_bias"] == [[5, 1.0]]


def test_the_tokens_of_an_echo_are_not_asked_for_where_they_would_hold_the_prompts() -> None:
    assert "return_token_ids" not in body("headrace", echo=True)
    assert body("vllm", echo=True)["return_token_ids"] is True


def test_half_a_surrogate_pair_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequestError, match="out of range"):
        body("openai", "\ud800")


@given(prompt=st.text(), name=st.sampled_from(sorted(DIALECTS)))
def test_text_arrives_as_it_is(prompt: str, name: DialectName) -> None:
    assert body(name, prompt)["prompt"] == prompt
