from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.upstream.events import Event, EventParser, EventTooLargeError

_LINES = st.sampled_from(
    [
        b"",
        b"data: x",
        b"data:y",
        b"data",
        b": ping",
        b"event: error",
        b"id: 1",
        b"data: a:b",
        b"\r x",
    ]
)
_STREAMS = st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=30).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def parse(found: list[bytes], max_bytes: int = 1 << 20) -> list[Event]:
    parser = EventParser(max_bytes)
    return [event for piece in found for event in parser.feed(piece)]


def test_an_event_is_its_data_lines() -> None:
    assert parse([b": hello\nevent: note\nid: 7\ndata: a\ndata:  b\ndata\n\ndata: cut"]) == [
        Event(b"note", b"a\n b\n")
    ]


def test_an_event_without_data_is_none_and_its_name_is_forgotten() -> None:
    assert parse([b"event: error\n\ndata: x\n\n"]) == [Event(b"", b"x")]


@given(stream=st.one_of(_STREAMS, st.binary(max_size=200)), cuts=st.lists(st.integers(0, 400)))
def test_the_same_events_come_in_whatever_pieces(stream: bytes, cuts: list[int]) -> None:
    assert parse(pieces(stream, cuts)) == parse([stream])


def _outcome(found: list[bytes], max_bytes: int) -> str:
    try:
        parse(found, max_bytes)
    except EventTooLargeError:
        return "too large"
    return "fits"


@given(stream=_STREAMS, cuts=st.lists(st.integers(0, 400)), max_bytes=st.integers(1, 40))
def test_the_bound_does_not_depend_on_the_pieces(
    stream: bytes, cuts: list[int], max_bytes: int
) -> None:
    assert _outcome(pieces(stream, cuts), max_bytes) == _outcome([stream], max_bytes)


@pytest.mark.parametrize("piece", [b"x", b"data: x\n", b": x\r", b"\r"])
def test_what_never_ends_is_too_large(piece: bytes) -> None:
    with pytest.raises(EventTooLargeError):
        parse([piece] * 2000, max_bytes=1000)


def test_what_ends_is_never_too_large() -> None:
    parser = EventParser(1000)
    for _ in range(1000):
        assert parser.feed(b": ping\n\ndata: x\n\n") == [Event(b"", b"x")]
