import gc
import json

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.body import decode_json
from headrace.api.openai.schema import ChatCompletionRequest, CompletionRequest
from headrace.api.sampling import MAX_PROMPT_TOKENS
from headrace.api.tokenization import DetokenizeRequest
from headrace.errors import InvalidRequestError

GOOD = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def complaint(**fields: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        decode_json(json.dumps({**GOOD, **fields}).encode(), ChatCompletionRequest)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "number <= 2"),
        ({"temperature": "1"}, "temperature", "got a string"),
        ({"top_p": 0}, "top_p", "number > 0"),
        ({"n": 1.5}, "n", "an integer or null, got a number"),
        ({"n": True}, "n", "got true or false"),
        ({"seed": 10**30}, "seed", "an integer"),
        ({"stop": ["a", ""]}, "stop.1", "length >= 1"),
        ({"stop": ["a"] * 17}, "stop", "length <= 16"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "a number"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "a string"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "pope"}]}, "messages.0.role", "'pope'"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_field(
    fields: dict[str, object], param: str, words: str
) -> None:
    error = complaint(**fields)
    assert error.param == param
    assert words in error.message
    assert error.message.startswith(param)
    assert error.message.endswith(".")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages is required\.$"):
        decode_json(b'{"model": "chat"}', ChatCompletionRequest)


def test_null_and_absent_are_the_same() -> None:
    nothing = decode_json(json.dumps(GOOD).encode(), ChatCompletionRequest)
    nulls = dict.fromkeys(("temperature", "stop", "seed", "tools", "logit_bias", "n"))
    assert decode_json(json.dumps({**GOOD, **nulls}).encode(), ChatCompletionRequest) == nothing


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    inner: "Strict | None" = None


@pytest.mark.parametrize(
    ("body", "param"),
    [({"innre": 1}, "innre"), ({"inner": {"a b": 1}}, "inner.a b"), ({"x" * 999: 1}, "x" * 80)],
)
def test_a_field_that_a_route_does_not_know_is_named_where_that_matters(
    body: object, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        decode_json(json.dumps(body).encode(), Strict)
    assert (error.value.param, error.value.message) == (param, f"{param}: there is no such field.")


def test_unknown_fields_are_ignored_elsewhere() -> None:
    body = json.dumps({**GOOD, "brand_new": {"x": [1]}}).encode()
    assert decode_json(body, ChatCompletionRequest).model == "chat"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nope",
        b"[]",
        b'"text"',
        b'{"model": "chat"',
        b'{"model": "a\xff"}',
        b'{"model": "a\\ud800"}',
        b'{"model": NaN}',
        b'{"model": "chat", "messages": [], "temperature": NaN}',
        b'{"model": "chat", "messages": [], "temperature": 1e999}',
        b'{"model": "chat", "messages": [], "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "chat", "tools": ' + b"[" * 100_000 + b"}",
        b'{"model": "chat", "unknown": ' + b'{"a":' * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
        b'{"model": "chat"} {}',
    ],
)
def test_whatever_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_json(body, ChatCompletionRequest)


@given(st.binary(max_size=200))
def test_no_bytes_cause_any_other_error(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_json(body, ChatCompletionRequest)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(ChatCompletionRequest.__struct_fields__), _JSON)
def test_any_value_in_any_field_is_taken_or_refused_by_name(name: str, value: object) -> None:
    body = json.dumps({**GOOD, name: value}).encode()
    try:
        decode_json(body, ChatCompletionRequest)
    except InvalidRequestError as error:
        assert error.param is None or error.param.startswith(name)  # noqa: PT017  # success is fine too


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_a_browser_sends_unasked_is_refused(
    http: httpx.AsyncClient, media_type: str
) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    answer = await http.post(
        "/v1/chat/completions", content=json.dumps(GOOD).encode(), headers=headers
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Type")


async def test_a_charset_beside_the_media_type_is_fine(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = json.dumps(GOOD).encode()
    answer = await http.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("kind", "field"), [(CompletionRequest, "prompt"), (DetokenizeRequest, "tokens")]
)
def test_too_many_token_ids_are_refused_while_the_body_is_read(
    kind: type[CompletionRequest | DetokenizeRequest], field: str
) -> None:
    body = json.dumps({"model": "chat", field: [1] * (MAX_PROMPT_TOKENS + 1)}).encode()
    with pytest.raises(InvalidRequestError, match=f"length <= {MAX_PROMPT_TOKENS}") as error:
        decode_json(body, kind)
    assert error.value.param == field


def test_a_body_of_many_lists_does_not_make_the_collector_run() -> None:
    body = b'{"model": "chat", "prompt": [%s[1]]}' % (b"[1]," * 100_000)
    runs: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, _info: runs.append(phase))
    try:
        decode_json(body, CompletionRequest)
    finally:
        gc.callbacks.pop()
    assert len(runs) <= 2  # a start and a stop, when it is on again
    assert gc.isenabled()
