import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.scripted import info
from headrace.api.openai.stream import CHAT, COMPLETION, Dialect, Head, OpenAIWire
from headrace.generation import Chunk, TokenLogprob, TopLogprob, Usage

HEAD = Head(id="x-1", created=7, model='a "model"')
USAGE = Usage(3, 4, 1)


def wire(
    dialect: Dialect, *, include_usage: bool = False, return_token_ids: bool = False
) -> OpenAIWire:
    return OpenAIWire(
        dialect, HEAD, info(), include_usage=include_usage, return_token_ids=return_token_ids
    )


def parsed(events: bytes) -> list[dict[str, object]]:
    bodies = [event.removeprefix("data: ") for event in events.decode().split("\n\n") if event]
    return [json.loads(body) for body in bodies if body != "[DONE]"]


def test_a_chat_stream_begins_with_the_role_and_ends_with_done() -> None:
    chat = wire(CHAT)
    events = chat.event(Chunk(0, "Hi", [1])) + chat.event(Chunk(0, "", [2], finish_reason="stop"))
    role, text, end = parsed(events)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text["choices"][0]["delta"] == {"content": "Hi"}
    assert text["choices"][0]["finish_reason"] is None
    assert end["choices"][0]["finish_reason"] == "stop"
    assert chat.ending(USAGE) == b"data: [DONE]\n\n"
    assert all("usage" not in event for event in (role, text, end))


def test_usage_comes_last_and_is_null_before() -> None:
    chat = wire(CHAT, include_usage=True)
    events = chat.event(Chunk(0, "a", [1])) + chat.event(Chunk(0, "b", [2], finish_reason="length"))
    assert [event["usage"] for event in parsed(events)] == [None, None, None]
    (last,) = parsed(chat.ending(USAGE))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert last["id"] == "x-1"


def test_a_token_that_shows_nothing_yet_sends_nothing() -> None:
    chat = wire(CHAT)
    chat.event(Chunk(0, "a", [1]))
    assert chat.event(Chunk(0, "", [2])) == b""


def test_usage_that_is_not_known_is_left_out() -> None:
    chat = wire(CHAT, include_usage=True)
    chunk = Chunk(0, "a", [], finish_reason="stop")
    assert chat.ending(None) == b"data: [DONE]\n\n"
    assert json.loads(chat.answer([chunk], None))["usage"] is None


@pytest.mark.parametrize("dialect", [CHAT, COMPLETION])
def test_token_ids_are_told_where_asked_for(dialect: Dialect) -> None:
    chunks = [
        Chunk(0, "a", [1]),
        Chunk(0, "", [2]),
        Chunk(0, "", []),
        Chunk(0, "b", [3, 4], finish_reason="stop"),
    ]
    asked, plain = wire(dialect, return_token_ids=True), wire(dialect)
    events = parsed(b"".join(asked.event(chunk) for chunk in chunks))
    told = [event["choices"][0].get("token_ids") for event in events]
    assert [each for each in told if each is not None] == [[1], [2], [3, 4]]
    assert json.loads(asked.answer(chunks, USAGE))["choices"][0]["token_ids"] == [1, 2, 3, 4]
    assert b"token_ids" not in b"".join(plain.event(chunk) for chunk in chunks)
    assert b"token_ids" not in plain.answer(chunks, USAGE)


def test_what_matched_is_told() -> None:
    completion = wire(COMPLETION)
    (event,) = parsed(completion.event(Chunk(0, "a", [1], finish_reason="stop", stop_reason="END")))
    assert event["object"] == "text_completion"
    assert event["choices"][0]["stop_reason"] == "END"


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=6)), max_size=20))
def test_the_events_and_the_answer_hold_the_same_texts(pieces: list[tuple[int, str]]) -> None:
    chunks = [Chunk(index, text, [1]) for index, text in pieces]
    chunks += [Chunk(index, "", [], finish_reason="stop") for index in range(4)]
    for dialect, text_of in (
        (CHAT, lambda choice: choice["message"]["content"]),
        (COMPLETION, lambda choice: choice["text"]),
    ):
        streamed = ["", "", "", ""]
        streaming = wire(dialect)
        for event in parsed(b"".join(streaming.event(chunk) for chunk in chunks)):
            choice = event["choices"][0]
            piece = choice["delta"]["content"] if dialect is CHAT else choice["text"]
            streamed[choice["index"]] += piece
        answer = json.loads(wire(dialect).answer(chunks, USAGE))
        assert [text_of(choice) for choice in answer["choices"]] == streamed
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


def logprob(token: bytes, value: float | None, *top: tuple[bytes, float]) -> TokenLogprob:
    return TokenLogprob(1, token, value, [TopLogprob(2, other, lp) for other, lp in top])


def test_chat_logprobs_have_bytes_and_no_infinity() -> None:
    chunk = Chunk(0, "é", [1], [logprob(b"\xc3", -0.5, (b"\xc3", -0.5), (b"b", float("-inf")))])
    (_, event) = parsed(wire(CHAT).event(chunk))
    (token,) = event["choices"][0]["logprobs"]["content"]
    assert token == {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [195],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [195]},
            {"token": "b", "logprob": -9999.0, "bytes": [98]},
        ],
    }


def test_completion_logprobs_tell_each_tokens_place_in_the_text() -> None:
    first = Chunk(0, "ab", [1, 1], [logprob(b"a", None), logprob(b"b", -1.0, (b"c", -0.5))])
    second = Chunk(0, "éd", [1, 1, 1], [logprob(t, -2.0) for t in (b"\xc3", b"\xa9", b"d")])
    completion = wire(COMPLETION)
    events = parsed(completion.event(first) + completion.event(second))
    runs = [event["choices"][0]["logprobs"] for event in events]
    assert [run["text_offset"] for run in runs] == [[0, 1], [2, 2, 3]]
    assert runs[0]["token_logprobs"] == [None, -1.0]
    assert runs[0]["top_logprobs"] == [None, {"c": -0.5, "b": -1.0}]
    assert runs[1]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "d"]


def test_each_choice_has_its_own_text_offsets() -> None:
    completion = wire(COMPLETION)
    completion.event(Chunk(0, "abc", [1], [logprob(b"abc", -1.0)]))
    (event,) = parsed(completion.event(Chunk(1, "x", [1], [logprob(b"x", -1.0)])))
    assert event["choices"][0]["logprobs"]["text_offset"] == [0]


def test_a_token_that_shows_nothing_takes_no_place_in_the_text() -> None:
    tokens = [b"<bos>", b" Hello", b" world", b"</s>"]
    completion = wire(COMPLETION)
    (event,) = parsed(
        completion.event(Chunk(0, "Hello world", [1] * 4, [logprob(t, -1.0) for t in tokens]))
    )
    assert event["choices"][0]["logprobs"]["text_offset"] == [0, 0, 5, 11]


def test_the_answer_has_the_text_offsets_of_the_stream() -> None:
    chunks = [Chunk(0, "\ufffd", [229], [logprob(b"\xe5", None)])]
    chunks += [Chunk(0, text, [1], [logprob(text.encode(), -1.0)]) for text in "-10"]
    chunks.append(Chunk(0, "", [], [], finish_reason="length"))
    streaming = wire(COMPLETION)
    events = parsed(b"".join(streaming.event(chunk) for chunk in chunks))
    runs = [event["choices"][0]["logprobs"] or {"text_offset": []} for event in events]
    streamed = [offset for run in runs for offset in run["text_offset"]]
    answer = json.loads(wire(COMPLETION).answer(chunks, USAGE))
    assert answer["choices"][0]["logprobs"]["text_offset"] == streamed == [0, 1, 2, 3]
