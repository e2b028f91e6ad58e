import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.stream import fold_chunks
from headrace.errors import DeadlineError, HeadraceError, InvalidRequestError, QueueFullError
from headrace.generation import (
    Answered,
    Chunk,
    GenerationRequest,
    SamplingParams,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headrace.routing.upstream.answer import AnswerReader
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamFaultError,
)
from headrace.routing.upstream.events import Event, EventParser
from headrace.routing.upstream.refusals import Refusals
from routing.upstream.misbehaving_server import DONE, WHOLE, event, text, usage


def read(*events: str, **sampling: Any) -> list[Chunk]:
    request = GenerationRequest(request_id="r", prompt="Once", sampling=SamplingParams(**sampling))
    return read_answer(request, *events)


def read_answer(request: GenerationRequest, *events: str) -> list[Chunk]:
    reader = AnswerReader(request, Refusals("up", "key"), started=0.0)
    parser = EventParser()
    found: list[Chunk] = []
    for now, data in enumerate(events, 1):
        for each in parser.feed(data.encode()):
            found += reader.read(each, now)
    return found if reader.is_complete else found + reader.end(len(events))


def delta(words: str | None, **fields: Any) -> str:
    return event(
        choices=[{"index": 0, "delta": {"content": words}, "finish_reason": None} | fields]
    )


def test_text_comes_at_once_and_the_end_with_the_usage() -> None:
    assert read(*WHOLE) == [
        Chunk(0, "Hello", []),
        Chunk(0, " you", [], None, "stop", None, Usage(3, 2), Timing(None, 1.0, 3.0, None)),
    ]


def test_the_last_tokens_come_with_the_end_and_not_before() -> None:
    """Else an answer that breaks off here would be gone on with past its end."""
    got = read(
        text("a", 0, token_ids=[4]),
        text("b", 1, "stop", token_ids=[5, 2]),
        text("c", 0, "stop", token_ids=[6, 2]),
        DONE,
        n=2,
    )
    assert [(chunk.index, chunk.text, chunk.token_ids) for chunk in got] == [
        (0, "a", [4]),
        (0, "c", [6, 2]),
        (1, "b", [5, 2]),
    ]
    assert [chunk.finish_reason for chunk in got] == [None, "stop", "stop"]


def test_usage_that_is_not_told_is_none() -> None:
    last = read(text("a", finish_reason="stop"), DONE)[-1]
    assert (last.text, last.usage) == ("a", None)


def test_a_chat_greets_without_a_chunk() -> None:
    greeting = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    got = read(greeting, delta("Hi"), delta(None, finish_reason="length"), usage(cached=1), DONE)
    assert [chunk.text for chunk in got] == ["Hi", ""]
    assert got[-1].usage == Usage(3, 2, 1)
    assert got[-1].finish_reason == "length"


def test_usage_may_come_with_every_event() -> None:
    spent = {"prompt_tokens": 5, "completion_tokens": 1}
    one = {"choices": [{"text": "a"}], "usage": spent}
    two = {
        "choices": [{"text": "b", "finish_reason": "stop"}],
        "usage": spent | {"total_tokens": 6},
    }
    assert read(event(**one), event(**two), DONE)[-1].usage == Usage(5, 1)


@pytest.mark.parametrize(
    "pieces", [["Once", " upon"], ["Once upon"], ["On", "ce", " upon"], ["On", "ce upon"]]
)
def test_an_echo_is_a_chunk_by_itself(pieces: list[str]) -> None:
    *first, last = pieces
    got = read(
        *(text(each) for each in first), text(last, token_ids=[7]), text(".", 0, "stop"), echo=True
    )
    assert [chunk.text for chunk in got] == ["Once", " upon", "."]
    assert [chunk.token_ids for chunk in got] == [[], [7], []]


def test_an_echo_that_is_none_is_given_as_it_is() -> None:
    got = read(text("On"), text("ly"), text(".", 0, "stop"), echo=True)
    assert [chunk.text for chunk in got] == ["Only", "."]


def test_an_echo_alone_is_whole() -> None:
    assert "".join(c.text for c in read(text("Once", 0, "length"), echo=True)) == "Once"
    assert "".join(c.text for c in read(text("On", 0, "length"), echo=True)) == "On"


def test_scores_of_an_echo_come_no_sooner_than_their_text() -> None:
    lists = {"tokens": ["Once", " upon"], "token_logprobs": [None, -1.0]}
    got = read(text("Once upon", 0, "stop", logprobs=lists), echo=True, logprobs=0)
    assert [(chunk.text, chunk.logprobs is None) for chunk in got] == [
        ("Once", True),
        (" upon", False),
    ]


def going_on(n: int = 1, **fields: Any) -> GenerationRequest:
    sampling = SamplingParams(n=n, echo=True)
    return GenerationRequest(request_id="r", prompt="Once", sampling=sampling, **fields)


def test_usage_of_an_answer_gone_on_with_by_tokens_is_the_upstreams() -> None:
    asked = going_on(answered=(Answered([4, 5], 3),))
    (last,) = read_answer(asked, text("c", 0, "stop", token_ids=[6]), usage(3, 3), DONE)
    assert (last.text, last.usage) == ("c", Usage(3, 3))


def test_a_choice_that_was_whole_before_is_not_waited_for() -> None:
    asked = going_on(n=2, answered=(Answered([], 3, is_finished=True), Answered([4], 1)))
    (last,) = read_answer(asked, text("c", 1, "stop", token_ids=[6]), usage(3, 2), DONE)
    assert (last.index, last.usage) == (1, Usage(3, 2))
    (last,) = read_answer(asked, text("c", 1, "stop"), usage(3, 9), DONE)
    assert last.usage == Usage(3, 9)


def test_usage_of_an_answer_gone_on_with_by_text_counts_it_as_answer() -> None:
    asked = going_on(answered=(Answered([4, 5], 3),), answered_text="abc")
    (last,) = read_answer(asked, text("d", 0, "stop"), usage(6, 1, cached=5), DONE)
    assert last.usage == Usage(4, 3, 4)


@pytest.mark.parametrize("answered", [(), (Answered([], 3),), (Answered([1] * 9, 3),)])
def test_usage_is_not_known_where_the_tokens_of_the_text_are_not(
    answered: tuple[Answered, ...],
) -> None:
    asked = going_on(answered=answered, answered_text="abc")
    (last,) = read_answer(asked, text("d", 0, "stop"), usage(6, 1), DONE)
    assert last.usage is None


def test_choices_are_kept_apart_and_share_the_usage() -> None:
    got = fold_chunks(
        read(
            text("a", 1, token_ids=[4]),
            text("b", 0, token_ids=[5, 6]),
            text("", 1, "stop", stop_reason="\n"),
            text("c", 0, "length", token_ids=[7]),
            usage(completion_tokens=4),
            DONE,
            n=2,
        )
    )
    by_index = {chunk.index: chunk for chunk in got}
    assert by_index[0].token_ids == [5, 6, 7]
    assert [by_index[i].text for i in (0, 1)] == ["bc", "a"]
    assert [by_index[i].usage for i in (0, 1)] == [Usage(3, 3), Usage(3, 1)]
    assert by_index[1].stop_reason == "\n"


def test_usage_that_cannot_be_divided_is_the_first_choices() -> None:
    got = read(text("a", 1, "stop"), text("b", 0, "stop"), usage(completion_tokens=9), n=2)
    assert [chunk.usage for chunk in got if chunk.finish_reason] == [Usage(3, 9), Usage(3, 0)]


def test_logprobs_of_a_chat() -> None:
    token = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    top = [{"token": "e", "logprob": -0.1, "bytes": None}, token]
    got = read(
        delta("é", logprobs={"content": [token | {"top_logprobs": top}]}, token_ids=[9]),
        delta("", finish_reason="stop"),
        logprobs=1,
    )
    likeliest = [TopLogprob(None, b"e", -0.1)]
    assert got[0].logprobs == [TokenLogprob(9, "é".encode(), -0.5, likeliest)]


def test_logprobs_of_a_completion() -> None:
    lists = {
        "tokens": ["a", "bytes:\\xc3"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"bytes:\\xc3": -3.0, "z": -0.5, "y": -1.0}],
        "text_offset": [0, 1],
    }
    got = read(text("a", finish_reason="stop", logprobs=lists), logprobs=2)
    top = [TopLogprob(None, b"z", -0.5), TopLogprob(None, b"y", -1.0)]
    assert got[0].logprobs == [
        TokenLogprob(None, b"a", None, []),
        TokenLogprob(None, b"\xc3", -3.0, top),
    ]


def test_logprobs_come_without_text_too() -> None:
    part = {"tokens": ["bytes:\\xc3"], "token_logprobs": [-1.0]}
    rest = {"tokens": ["bytes:\\xa9"], "token_logprobs": [-2.0]}
    got = fold_chunks(
        read(text("", logprobs=part), text("é", finish_reason="stop", logprobs=rest), logprobs=0)
    )
    assert got[0].logprobs is not None
    assert b"".join(each.token for each in got[0].logprobs) == "é".encode()


@pytest.mark.parametrize(
    "lists",
    [
        {"tokens": ["a"], "token_logprobs": []},
        {"tokens": ["a"], "token_logprobs": [0.0], "top_logprobs": [None, None]},
        {"tokens": ["bytes:\\xzz"], "token_logprobs": [0.0]},
        {"content": [{"token": "a", "logprob": 0.0, "bytes": [300]}]},
    ],
)
def test_logprobs_that_do_not_fit_together_break_the_answer(lists: dict[str, Any]) -> None:
    with pytest.raises(UpstreamBrokenError, match="log-probabilities"):
        read(text("a", finish_reason="stop", logprobs=lists), logprobs=0)


def test_logprobs_that_nobody_asked_for_are_passed_over() -> None:
    assert read(text("a", finish_reason="stop", logprobs={"tokens": ["a"]}))[0].logprobs is None


@pytest.mark.parametrize("reason", ["tool_calls", "abort", "error", "made up"])
def test_an_end_that_we_have_no_word_for_is_never_called_a_stop(reason: str) -> None:
    with pytest.raises(UpstreamBrokenError, match=reason):
        read(text("a", finish_reason=reason), usage(), DONE)


def test_a_content_filter_is_no_fault_of_the_upstream() -> None:
    with pytest.raises(InvalidRequestError, match="content filter"):
        read(text("a", finish_reason="content_filter"), usage(), DONE)


def test_text_after_the_end_breaks_the_answer() -> None:
    with pytest.raises(UpstreamBrokenError, match="goes on after its end"):
        read(text("a", finish_reason="stop"), text("b"))


def test_nothing_counts_after_the_last_word() -> None:
    assert read(*WHOLE, "data: garbage\n\n") == read(*WHOLE)


ERRORS = [
    ({"message": "boom", "type": "InternalServerError", "code": 500}, UpstreamFaultError),
    ({"message": "boom", "code": 429}, UpstreamBusyError),
    ({"message": "boom", "code": 400}, InvalidRequestError),
    ({"message": "boom", "code": 7}, UpstreamFaultError),
    ({"message": "boom", "code": "deadline_exceeded"}, DeadlineError),
    ({"message": "boom", "code": "queue_full"}, QueueFullError),
    ({"message": "boom", "code": "invalid_configuration"}, UpstreamFaultError),
    ({"message": "boom"}, UpstreamFaultError),
    ("boom", UpstreamFaultError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_in_the_stream_is_what_it_says(error: Any, kind: type[HeadraceError]) -> None:
    with pytest.raises(HeadraceError, match="upstream up: boom") as caught:
        read(text("a"), event(error=error))
    assert type(caught.value) is kind


def test_an_event_may_be_an_error_by_its_name() -> None:
    with pytest.raises(UpstreamFaultError, match="upstream up: boom"):
        read(f"event: error\ndata: {json.dumps({'message': 'boom'})}\n\n")


def only_our_errors(data: bytes) -> bool:
    """Whether bytes are read or refused as this upstream's."""
    asked = GenerationRequest(request_id="r", prompt="Hi", sampling=SamplingParams(logprobs=1))
    reader = AnswerReader(asked, Refusals("up", None), started=0.0)
    said: list[str] = []
    for name in (b"", b"error"):
        try:
            reader.read(Event(name, data), 1.0)
        except HeadraceError as error:
            said.append(error.message)
    return all(each.startswith("upstream up: ") for each in said)


@given(st.binary())
def test_no_bytes_raise_anything_but_our_errors(data: bytes) -> None:
    assert only_our_errors(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "index", "text", "delta", "content", "usage", "error"])
            | st.sampled_from(["logprobs", "tokens", "finish_reason", "prompt_tokens", "message"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_no_json_raises_anything_but_our_errors(value: Any) -> None:
    assert only_our_errors(json.dumps(value).encode())
