import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.openai import keeping
from headrace.api.openai.keeping import Kept, KeptBytes
from headrace.api.openai.relayed_events import RelayedEvents
from headrace.errors import UnavailableError
from headrace.generation import Usage

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
DONE = b"data: [DONE]\n\n"


def event(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk as most servers write it."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return {**HEAD, "choices": [choice]}


def usage_event() -> dict[str, Any]:
    return {**HEAD, "choices": [], "usage": USAGE}


def written(body: dict[str, Any], *, spaces: bool = False, end: bytes = b"\n\n") -> bytes:
    separators = (", ", ": ") if spaces else (",", ":")
    return b"data: " + json.dumps(body, separators=separators).encode() + end


def relayed(*, num_choices: int = 1, usage: bool = True, token_ids: bool = False) -> RelayedEvents:
    kept = Kept(KeptBytes(), forget=lambda: None)
    return RelayedEvents(
        kept, num_choices=num_choices, hides_usage=usage, hides_token_ids=token_ids
    )


def shown(events: RelayedEvents, pieces: list[bytes]) -> bytes:
    return b"".join([*map(events.take, pieces), events.last])


TRICKY = [
    '"finish_reason":null',
    "data: [DONE]\n\n",
    '"choices":[]',
    ',"usage":null',
    "é\u2028\n\n",
]


@given(
    texts=st.lists(st.sampled_from(TRICKY) | st.text(max_size=5), max_size=6),
    together=st.lists(st.booleans(), min_size=9, max_size=9),
    spaces=st.booleans(),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    hides=st.booleans(),
)
def test_all_that_was_asked_for_goes_by_however_it_is_cut(
    *, texts: list[str], together: list[bool], spaces: bool, end: bytes, hides: bool
) -> None:
    bodies = [event(text) for text in texts] + [event(finish="length")]
    answer = [written(body, spaces=spaces, end=end) for body in bodies]
    usage, done = written(usage_event(), spaces=spaces, end=end), b"data: [DONE]" + end
    pieces = [b""]
    for each, joins in zip([*answer, usage, done], together, strict=False):
        pieces.append(pieces.pop() + each if joins else each)
    events = relayed(usage=hides)
    expected = b"".join([*answer, *([] if hides else [usage]), done])
    assert shown(events, pieces) == expected
    events.check_end()
    assert (events.finish_reason, events.usage) == ("length", Usage(7, 3))
    assert events.last.endswith(done)


def test_the_last_events_wait_for_whoever_ends_the_stream() -> None:
    events = relayed()
    last = written(event(finish="stop"))
    assert events.take(written(event("a"))) == written(event("a"))
    assert events.take(last + written(usage_event()) + DONE) == b""
    assert events.last == last + DONE


def test_token_ids_that_nobody_asked_for_are_taken_out() -> None:
    said = written(event('"a",\\"token_ids\\":[1]', token_ids=[1, 22, 333]))
    ended = written(event("b", "stop", token_ids=[]))
    events = relayed(token_ids=True)
    found = shown(events, [said, ended + DONE])
    assert b'"token_ids":[' not in found
    assert found == written(event('"a",\\"token_ids\\":[1]')) + written(event("b", "stop")) + DONE
    assert events.kept is None
    asked_for = relayed(token_ids=False)
    assert asked_for.take(said) == said


@pytest.mark.parametrize(
    "said", [b', "token_ids": [1, 2]', b',"token_ids" : [ 1,\t2 ]', b', "token_ids": null']
)
def test_token_ids_are_taken_out_however_they_are_written(said: bytes) -> None:
    begin, end = b'data: {"choices": [{"index": 0, "text": "a"', b"}]}\n\n"
    assert relayed(token_ids=True).take(begin + said + end) == begin + end


def test_a_usage_of_null_goes_where_the_usage_goes() -> None:
    body = {**event("a"), "usage": None}
    assert relayed(usage=True).take(written(body)) == written(event("a"))
    assert relayed(usage=False).take(written(body)) == written(body)


def test_usage_beside_choices_stays_with_them() -> None:
    last = written({**event("a", "stop"), "usage": USAGE})
    events = relayed()
    assert shown(events, [last, DONE]) == last + DONE
    assert events.usage == Usage(7, 3)


def test_what_is_no_chunk_goes_by() -> None:
    pieces = [b": ping\n\n", b'data: {"odd": 1}\n\n', b"event: x\ndata: y\n\n", written(event("a"))]
    events = relayed()
    assert b"".join(map(events.take, pieces)) == b"".join(pieces)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [written(event("a"))],
        [written(event("a", "stop"))],
        [written(event("a")), DONE],
        [written(event("[DONE]")), written(event("b", "stop"))],
    ],
)
def test_an_answer_without_both_ends_is_not_whole(pieces: list[bytes]) -> None:
    events = relayed()
    for piece in pieces:
        events.take(piece)
    with pytest.raises(UnavailableError):
        events.check_end()


def test_every_choice_must_end() -> None:
    events = relayed(num_choices=2)
    events.take(written(event("a", "stop")))
    second = {**HEAD, "choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
    ended = relayed(num_choices=2)
    ended.take(written(event("a", "stop")) + written(second) + DONE)
    ended.check_end()
    events.take(DONE)
    with pytest.raises(UnavailableError):
        events.check_end()


def test_one_choice_that_ends_twice_does_not_end_another() -> None:
    events = relayed(num_choices=2)
    far = {**HEAD, "choices": [{"index": 9, "delta": {}, "finish_reason": "stop"}]}
    shown(events, [written(event("a", "stop")), written(event(None, "stop")), written(far), DONE])
    with pytest.raises(UnavailableError):
        events.check_end()


def test_what_was_sent_is_kept_as_it_came_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_KEPT", 1000)
    events = relayed(token_ids=True)
    piece = written(event("a", token_ids=[7]))
    events.take(piece)
    assert events.kept == piece
    for _ in range(10):
        events.take(piece)
    assert events.kept is None
