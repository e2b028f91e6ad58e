import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, InvalidRequestError, WorkerDiedError
from headrace.routing.attempts import whole_events
from headrace.routing.attempts.whole_events import WholeEvents
from headrace.routing.upstream.errors import UpstreamBrokenError, UpstreamBusyError
from headrace.routing.upstream.refusals import Refusals

DONE = b"data: [DONE]\n\n"


def told(**error: object) -> bytes:
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def said(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def events_of(*pieces: bytes) -> tuple[bytes, WholeEvents]:
    events = WholeEvents(Refusals("up", None))
    return b"".join(events.feed(piece) for piece in pieces), events


def test_only_whole_events_go_on() -> None:
    whole, events = events_of(said("a") + b'data: {"cho')
    assert whole == said("a")
    assert not events.is_done
    assert events.feed(b'ices": []}\n\n') == b'data: {"choices": []}\n\n'


@pytest.mark.parametrize("done", [DONE, b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n"])
def test_the_last_event_says_that_it_is(done: bytes) -> None:
    whole, events = events_of(said("a") + done)
    assert (whole, events.is_done) == (said("a") + done, True)


@pytest.mark.parametrize("more", [said("b"), b": ping\n\n", b"\n", b"data: x", told(message="no")])
def test_what_comes_after_the_end_is_not_passed_on(more: bytes) -> None:
    for pieces in ([said("a") + DONE + more], [said("a") + DONE, more]):
        whole, events = events_of(*pieces)
        assert (whole, events.is_done, events.error) == (said("a") + DONE, True, None)


@pytest.mark.parametrize(
    "event",
    [
        said("[DONE]"),
        said("data: [DONE]\n\n"),
        b": [DONE]\n\n",
        b"id: [DONE]\n\n",
        b"data: not [DONE]\n\n",
        b"data: [DONE]\n",
    ],
)
def test_what_only_looks_like_the_end_is_none(event: bytes) -> None:
    _, events = events_of(event)
    assert not events.is_done


@pytest.mark.parametrize(
    "event",
    [
        said('"error": {"message": "no"}'),
        said('{"error":1}'),
        b'data: {"choices": [{"text": "error"}], "error": null}\n\n',
        b'data: {"choices": [{"delta": {"error": "x"}}]}\n\n',
        b'data: "error"\n\n',
        b'data: {"error": no json\n\n',
        b'event: message\ndata: {"choices": []}\n\n',
        said("event: error\n"),
    ],
)
def test_what_only_looks_like_an_error_goes_on(event: bytes) -> None:
    whole, events = events_of(event + DONE)
    assert (whole, events.is_done, events.error) == (event + DONE, True, None)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (told(message="no", code=400), InvalidRequestError),
        (told(message="later", code=503), UpstreamBusyError),
        (told(message="gone", code="worker_died"), WorkerDiedError),
        (b'event: error\ndata: {"message": "no", "code": 400}\n\n', InvalidRequestError),
        (b'event: error\r\ndata: {"message": "no", "code": 400}\r\n\r\n', InvalidRequestError),
        (b': x\ndata: {"error":\ndata: {"message": "no", "code": 400}}\n\n', InvalidRequestError),
        (b'data: {"usage": 1, "error": {"code": 400}}\n\n', InvalidRequestError),
    ],
)
def test_an_error_ends_it_after_whole_events_only(event: bytes, kind: type[HeadraceError]) -> None:
    whole, events = events_of(said("a") + event + said("b") + DONE)
    assert whole == said("a")
    assert type(events.error) is kind
    assert not events.is_done
    assert events.feed(said("c")) == b""


def test_an_event_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_events, "MAX_EVENT_BYTES", 100)
    whole, events = events_of(said("a"), b"data: " + b"x" * 50, b"x" * 50)
    assert whole == said("a")
    assert isinstance(events.error, UpstreamBrokenError)
    assert "over 100 bytes" in events.error.message


PARTS = st.sampled_from(
    [
        said("a"),
        said("[DONE] error é"),
        said("x" * 300),
        b": ping\n\n",
        b"\n",
        b'data: {"choices": []}\r\n\r\n',
        b'event: error\ndata: {"message": "no"}\n\n',
        told(message="no"),
        DONE,
        b"data: [DONE]\r\n\r\n",
        b"data: cut",
    ]
)


@given(parts=st.lists(PARTS, max_size=8), data=st.data())
def test_any_cut_gives_the_same_whole_events(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    bounds = [0, *sorted(cuts), len(stream)]
    at_once, expected = events_of(stream)
    in_pieces, events = events_of(*(stream[start:end] for start, end in pairwise(bounds)))
    assert in_pieces.rstrip(b"\n") == at_once.rstrip(b"\n")  # an empty line more is no event
    assert events.is_done == expected.is_done
    assert (events.error is None) == (expected.error is None)


@given(parts=st.lists(PARTS, max_size=8))
def test_byte_by_byte_gives_the_same_whole_events(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    at_once, expected = events_of(stream)
    in_bytes, events = events_of(*(bytes([byte]) for byte in stream))
    assert in_bytes.rstrip(b"\n") == at_once.rstrip(b"\n")
    assert (events.is_done, str(events.error)) == (expected.is_done, str(expected.error))
