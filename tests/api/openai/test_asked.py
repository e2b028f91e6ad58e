import json
import sys
from typing import Any

import msgspec
import pytest

from headrace.api.openai.asked import AskedChat, AskedCompletion, read_asked, without_body
from headrace.errors import InvalidRequestError
from headrace.routing.keys import LOOKED_AT

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def body(**fields: Any) -> bytes:
    return json.dumps({**CHAT, **fields}).encode()


def test_fields_that_nobody_here_knows_are_no_errors() -> None:
    asked = read_asked(
        body(tools=[{"type": "function"}], messages=[{"role": "x", "content": [{"image": 1}]}]),
        AskedChat,
    )
    assert (asked.model, asked.stream, asked.num_choices, asked.wants_usage) == (
        "m",
        None,
        1,
        False,
    )


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "The body is not valid JSON: "),
        (b"[]", "The body: expected an object, got a list."),
        (b'{"messages":[]}', "model is required."),
        (b'{"model":"m"}', "messages is required."),
        (b'{"model":1,"messages":[]}', "model: expected a string, got an integer."),
        (body(stream="yes"), "stream: expected true or false or null, got a string."),
        (body(n=0), "n: expected an integer >= 1."),
        (b'{"model":"m","messages":[{"content":"\xff"}]}', "The body is not valid UTF-8: "),
        (b'{"model":"m","messages":[1,,2]}', "The body is not valid JSON: "),
    ],
)
def test_what_is_wrong_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_asked(data, AskedChat)
    assert caught.value.message.startswith(complaint)


@pytest.mark.parametrize(
    ("options", "wants"),
    [(None, False), ({}, False), ({"include_usage": True}, True), ({"include_usage": None}, False)],
)
def test_usage_is_wanted_by_those_who_say_so(options: object, *, wants: bool) -> None:
    assert read_asked(body(stream_options=options), AskedChat).wants_usage is wants


@pytest.mark.parametrize(
    ("prompt", "number"),
    [("a", 2), ([1, 2, 3], 2), (["a", "b", "c"], 6), ([[1], [2]], 4), ([], 2), (None, 2)],
)
def test_every_prompt_has_its_choices(prompt: object, number: int) -> None:
    data = json.dumps({"model": "m", "prompt": prompt, "n": 2}).encode()
    assert read_asked(data, AskedCompletion).num_choices == number


@pytest.mark.parametrize("prompt", ['[ 1, "a"]', " [ ]", '{"a":[]}', "[null,2]", '""'])
def test_whatever_is_no_list_of_prompts_is_one(prompt: str) -> None:
    data = f'{{"model":"m","prompt":{prompt}}}'.encode()
    assert read_asked(data, AskedCompletion).num_choices == 1


def test_prompts_are_counted_without_reading_them() -> None:
    data = b'{"model":"m","prompt":["",1e999,{"a":[]},[]]}'
    assert read_asked(data, AskedCompletion).num_choices == 4


def test_a_prompt_too_deep_to_be_counted_is_refused() -> None:
    asked = AskedCompletion(model="m", prompt=msgspec.Raw(b'["",' + b"[" * 9999 + b"]" * 10000))
    with pytest.raises(InvalidRequestError, match=r"^The body is nested too deeply\.$"):
        _ = asked.num_choices


@pytest.mark.parametrize(
    ("fields", "resumes", "calls_tools"),
    [
        ({}, False, False),
        ({"answered": None, "tools": None, "functions": []}, False, False),
        ({"answered": [], "tools": []}, False, False),
        ({"answered": [{"token_ids": [1]}]}, True, False),
        ({"tools": [{}]}, False, True),
        ({"functions": [{}]}, False, True),
    ],
)
def test_what_few_clients_ask_for_is_seen(
    fields: dict[str, Any], *, resumes: bool, calls_tools: bool
) -> None:
    asked = read_asked(body(**fields), AskedChat)
    assert (asked.resumes, asked.calls_tools) == (resumes, calls_tools)


def test_what_is_left_without_the_body_does_not_hold_it() -> None:
    data = body(stream_options={"a": 1}, tools=[1], user="u")
    before = sys.getrefcount(data)
    asked = read_asked(data, AskedChat)
    assert sys.getrefcount(data) > before
    asked = without_body(asked)
    assert sys.getrefcount(data) == before
    assert (asked.model, asked.user) == ("m", "u")


def test_of_a_long_prompt_the_beginning_is_told() -> None:
    asked = read_asked(
        json.dumps({"model": "m", "prompt": "é" * LOOKED_AT}).encode(), AskedCompletion
    )
    assert asked.beginning.startswith('"\\u00e9')
    assert len(asked.beginning) == LOOKED_AT
    cut = read_asked(
        '{{"model":"m","prompt":"{}"}}'.format("é" * LOOKED_AT).encode(), AskedCompletion
    )
    assert cut.beginning.startswith('"éé')
