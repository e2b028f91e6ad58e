import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Answered, Chat, GenerationRequest, Message, Prompt, SamplingParams
from headrace.routing.upstream.continuing import can_go_on
from headrace.routing.upstream.dialect import DIALECTS, DialectName
from headrace.routing.upstream.rendering import render

CHAT = Chat((Message("user", "Hi"),))
ANSWERED = (Answered([4, 5], 6),)
OTHERS = sorted(DIALECTS.keys() - {"headrace"})


def request(prompt: Prompt = "Hi", *, n: int = 1, **fields: Any) -> GenerationRequest:
    sampling = {name: fields.pop(name) for name in [*fields] if name not in _OWN}
    params = SamplingParams(**{"max_tokens": 8, "n": n, **sampling})
    return GenerationRequest(request_id="r", prompt=prompt, sampling=params, **fields)


_OWN = {"answered", "answered_text"}


def body(dialect: DialectName, asked: GenerationRequest) -> dict[str, Any]:
    _, data = render(asked, "m", DIALECTS[dialect])
    found: dict[str, Any] = json.loads(data)
    return found


# By tokens


def test_a_headrace_is_told_the_tokens_of_every_choice() -> None:
    answered = (Answered([4, 5], 6), None, Answered([], 9, is_finished=True))
    sent = body("headrace", request(n=3, answered=answered))
    assert sent["answered"] == [
        {"token_ids": [4, 5], "num_characters": 6, "is_finished": False},
        None,
        {"token_ids": [], "num_characters": 9, "is_finished": True},
    ]
    assert (sent["max_tokens"], sent["prompt"], sent["return_token_ids"]) == (8, "Hi", True)


def test_an_echo_that_was_sent_is_not_asked_for_again() -> None:
    sent = body("headrace", request(echo=True, answered=ANSWERED))
    assert "echo" not in sent
    assert sent["return_token_ids"] is True
    still_owed = body("headrace", request(n=2, echo=True, answered=(*ANSWERED, None)))
    assert still_owed["echo"] is True
    nothing_else = body("headrace", request(echo=True, max_tokens=0, answered=(Answered([], 0),)))
    assert (nothing_else["echo"], nothing_else["max_tokens"]) == (True, 0)


@pytest.mark.parametrize("dialect", OTHERS)
def test_others_cannot_be_told_tokens(dialect: DialectName) -> None:
    with pytest.raises(UnsupportedParameterError, match="by its tokens") as caught:
        render(request(answered=ANSWERED), "m", DIALECTS[dialect])
    assert caught.value.param == "answered"


# By text


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_completions_text_follows_its_prompt_everywhere(dialect: DialectName) -> None:
    sent = body(dialect, request(answered_text=" you", temperature=0.5))
    assert (sent["prompt"], sent["max_tokens"]) == ("Hi you", 8)
    assert "answered" not in sent


def test_a_chats_text_is_its_last_message() -> None:
    asked = request(CHAT, answered_text="Hello")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    vllm, llama_cpp = body("vllm", asked), body("llama.cpp", asked)
    assert vllm["messages"] == llama_cpp["messages"] == messages
    assert vllm["continue_final_message"] is True
    assert vllm["add_generation_prompt"] is False
    assert "continue_final_message" not in llama_cpp
    assert "add_generation_prompt" not in llama_cpp


@pytest.mark.parametrize("dialect", ["openai", "compatible", "headrace"])
def test_a_chat_is_not_gone_on_with_where_it_would_begin_anew(dialect: DialectName) -> None:
    with pytest.raises(UnsupportedParameterError, match="by its text"):
        render(request(CHAT, answered_text="Hello"), "m", DIALECTS[dialect])


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
@pytest.mark.parametrize(
    "chat",
    [
        Chat(CHAT.messages, add_generation_prompt=False),
        Chat((*CHAT.messages, Message("assistant", "Well,"))),
    ],
)
def test_the_rest_of_a_message_is_not_gone_on_with(dialect: DialectName, chat: Chat) -> None:
    assert not can_go_on(request(chat), DIALECTS[dialect], "text")
    assert can_go_on(request(CHAT), DIALECTS[dialect], "text")


def test_token_ids_and_several_choices_have_no_text_to_go_on_with() -> None:
    for asked in (request([1, 2]), request(n=2)):
        assert not can_go_on(asked, DIALECTS["vllm"], "text")


def test_the_limits_shrink_by_what_is_known() -> None:
    known = request(answered_text=" you", answered=ANSWERED, min_tokens=3)
    sent = body("vllm", known)
    assert (sent["max_tokens"], sent["min_tokens"]) == (6, 1)
    unknown = body("vllm", request(answered_text=" you", min_tokens=3))
    assert (unknown["max_tokens"], unknown["min_tokens"]) == (8, 3)
    unlimited = request(answered_text=" you", answered=ANSWERED, max_tokens=None)
    assert body("vllm", unlimited)["max_tokens"] is None


def test_nothing_is_left_of_a_limit_that_was_reached() -> None:
    with pytest.raises(InvalidRequestError, match="leave nothing of max_tokens=2"):
        render(
            request(answered_text=" you", answered=ANSWERED, max_tokens=2), "m", DIALECTS["vllm"]
        )


def test_a_text_brings_no_second_echo() -> None:
    assert "echo" not in body("openai", request(answered_text=" you", echo=True))


@given(
    prompt=st.text() | st.lists(st.integers(0, 9), min_size=1) | st.just(CHAT),
    n=st.integers(1, 2),
    name=st.sampled_from(sorted(DIALECTS)),
    by=st.sampled_from(["tokens", "text"]),
)
def test_what_can_be_gone_on_with_is_rendered_and_the_rest_is_refused(
    prompt: Prompt, n: int, name: DialectName, by: Any
) -> None:
    begun: dict[str, Any] = {
        "tokens": {"answered": (*ANSWERED, *[None] * (n - 1))},
        "text": {"answered_text": "so far"},
    }
    asked = request(prompt, n=n, **begun[by])
    if can_go_on(asked, DIALECTS[name], by):
        assert body(name, asked)
    else:
        with pytest.raises(UnsupportedParameterError):
            render(asked, "m", DIALECTS[name])
