from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.http.errors import (
    HttpError,
    MalformedError,
    UnansweredError,
    UnreachableError,
)
from headrace.routing.http.parser import MAX_HEAD_BYTES, MAX_HEADERS, AnswerParser

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    b"3;name=value\r\nhel\r\n2\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
HINTED = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + COUNTED
ANSWERS = (COUNTED, CHUNKED, UNTIL_CLOSE, HINTED)

Seen = tuple[int, dict[str, str], bytes, bool, type[HttpError] | None]


def read(*reads: bytes) -> Seen:
    """What is seen of an answer that comes in these reads, after which the server closes."""
    parser, body, fault = AnswerParser(), b"", None
    parser.begin()
    for data in reads:
        try:
            parser.feed(data)
        except HttpError as error:
            fault = type(error)
        body += parser.take()
        if fault is not None or parser.is_over:
            break
    else:
        try:
            parser.end(is_reset=False)
        except HttpError as error:
            fault = type(error)
    headers = parser.headers if parser.status else {}
    return parser.status, headers, body, parser.is_over, fault


def cut(data: bytes, places: set[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


PLACES = st.sets(st.integers(0, 1 << 16), max_size=40)


@given(answer=st.sampled_from(ANSWERS), places=PLACES)
def test_an_answer_is_the_same_in_whatever_reads_it_comes(answer: bytes, places: set[int]) -> None:
    assert read(*cut(answer, places)) == read(answer)
    status, _, body, is_over, fault = read(answer)
    assert (status, body, is_over, fault) == (200, b"hello", True, None)


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    counted=st.booleans(),
    places=PLACES,
)
def test_any_body_comes_whole(chunks: list[bytes], *, counted: bool, places: set[int]) -> None:
    body = b"".join(chunks)
    if counted:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    else:
        framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % framed
    *_, got, is_over, fault = read(*cut(answer, places))
    assert (got, is_over, fault) == (body, True, None)


@given(
    answer=st.sampled_from(ANSWERS),
    at=st.integers(0, 1 << 16),
    put=st.binary(max_size=3),
    places=PLACES,
)
def test_a_wrong_answer_is_as_wrong_in_whatever_reads_it_comes(
    answer: bytes, at: int, put: bytes, places: set[int]
) -> None:
    at %= len(answer)
    wrong = answer[:at] + put + answer[at + 1 :]
    assert read(*cut(wrong, places)) == read(wrong)


@given(answer=st.sampled_from((COUNTED, CHUNKED, HINTED)), at=st.integers(0, 1 << 16))
def test_an_answer_that_is_cut_short_is_never_whole(answer: bytes, at: int) -> None:
    status, _, body, is_over, fault = read(answer[: at % len(answer)])
    assert not is_over
    assert b"hello".startswith(body)
    assert fault is not None
    assert (fault is MalformedError) == bool(status)


def test_headers_are_known_by_names_in_lower_case() -> None:
    _, headers, *_ = read(CHUNKED)
    assert headers == {"transfer-encoding": "chunked", "x-a": "1, 2"}


def test_early_headers_are_forgotten() -> None:
    _, headers, *_ = read(HINTED)
    assert headers == {"content-type": "text/plain", "content-length": "5"}


@pytest.mark.parametrize(
    ("answer", "may_be_kept"),
    [
        (COUNTED, True),
        (CHUNKED, True),
        (HINTED, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (COUNTED + b"garbage", False),
        (COUNTED + COUNTED, False),
        (CHUNKED + b"HTTP/1.1 200 OK\r\n", False),
    ],
)
def test_a_connection_is_kept_where_nothing_speaks_against_it(
    answer: bytes, *, may_be_kept: bool
) -> None:
    parser = AnswerParser()
    parser.begin()
    parser.feed(answer)
    assert parser.is_over
    assert parser.may_be_kept is may_be_kept


def test_one_parser_reads_one_answer_after_another() -> None:
    parser = AnswerParser()
    for answer in (COUNTED, CHUNKED, HINTED, COUNTED):
        parser.begin()
        parser.feed(answer)
        assert (parser.take(), parser.is_over, parser.may_be_kept) == (b"hello", True, True)


def test_a_body_that_only_closing_ends_is_not_ended_by_a_reset() -> None:
    parser = AnswerParser()
    parser.begin()
    parser.feed(UNTIL_CLOSE)
    with pytest.raises(MalformedError, match="broke off"):
        parser.end(is_reset=True)


@pytest.mark.parametrize(
    ("came", "kind"),
    [(b"", UnansweredError), (b"HTTP/1.1 2", UnreachableError), (COUNTED[:-1], MalformedError)],
)
def test_how_far_it_came_tells_how_it_broke(came: bytes, kind: type[HttpError]) -> None:
    parser = AnswerParser()
    parser.begin()
    if came:
        parser.feed(came)
    with pytest.raises(HttpError) as caught:
        parser.end(is_reset=False)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\nA: 1\n\n",
        b"220 smtp.example ESMTP\r\n",
    ],
)
def test_a_head_that_we_do_not_take(head: bytes) -> None:
    assert read(head)[-1] is MalformedError
    assert read(*[head[i : i + 1] for i in range(len(head))])[-1] is MalformedError


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 100),
        (b"HTTP/1.1 200 OK\r\n", b"X-" + b"y" * 1000 + b": 1\r\n"),
        (b"HTTP/1.1 200 ", b"OK" * 100),
        (b"HTTP/1.1 103 Hints\r\n\r\n", b"HTTP/1.1 103 Hints\r\n\r\n"),
        (CHUNKED_HEAD + b"5;", b"extension" * 100),
        (CHUNKED_HEAD + b"0\r\n", b"X-Trailer: 1\r\n" * 100),
        (CHUNKED_HEAD + b"0\r\nX-Trailer: ", b"x" * 100),
        (CHUNKED_HEAD, b"0" * 100),
    ],
)
def test_what_is_no_body_has_an_end(first: bytes, again: bytes) -> None:
    parser = AnswerParser()
    parser.begin()
    parser.feed(first)
    for _ in range(MAX_HEAD_BYTES // len(again) + 1):
        try:
            parser.feed(again)
        except MalformedError:
            return
    pytest.fail("it has none")


def test_headers_are_counted() -> None:
    def answer(number: int) -> bytes:
        return b"HTTP/1.1 200 OK\r\n" + b"A: 1\r\n" * number + b"Content-Length: 0\r\n\r\n"

    assert read(answer(MAX_HEADERS - 1))[-1] is None
    assert read(answer(MAX_HEADERS))[-1] is MalformedError


def test_a_long_body_of_small_chunks_is_no_flood() -> None:
    parser = AnswerParser()
    parser.begin()
    parser.feed(CHUNKED_HEAD)
    for _ in range(2 * MAX_HEAD_BYTES // 6):
        parser.feed(b"1\r\n")
        parser.feed(b"x\r\n")
    assert len(parser.take()) == 2 * MAX_HEAD_BYTES // 6
