from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.connection import (
    Connection,
    ConnectionLostError,
    Event,
    UnreachableError,
    _lines,
    _parse,
)
from headrace.errors import (
    ConflictError,
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
)
from models_server import BREAK, EVENTS, ModelsServer, event, refusal


@pytest.fixture
def connection(server: ModelsServer) -> Iterator[Connection]:
    opened = Connection(server.url)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "model_not_found", ModelNotFoundError),
        (409, "conflict", ConflictError),
        (500, "internal_error", HeadraceError),
        (418, "of_a_newer_server", HeadraceError),
    ],
)
def test_a_refusal_raises_what_the_server_raised(
    server: ModelsServer, connection: Connection, status: int, code: str, kind: type
) -> None:
    server.answers["GET /x"] = (status, refusal(code, "because"))
    with pytest.raises(HeadraceError, match="because") as caught:
        connection.ask("GET", "/x")
    assert type(caught.value) is kind


def test_a_refusal_says_when_to_come_again() -> None:
    body = refusal("queue_full", "full")
    transport = httpx.MockTransport(
        lambda _: httpx.Response(503, json=body, headers={"Retry-After": "7"})
    )
    with pytest.raises(QueueFullError) as caught:
        Connection("http://server", transport=transport).ask("GET", "/x")
    assert caught.value.retry_after == 7.0


def test_codes_of_other_servers_may_be_numbers(
    server: ModelsServer, connection: Connection
) -> None:
    server.answers["GET /x"] = (404, {"error": {"message": "no such model", "code": 404}})
    with pytest.raises(HeadraceError, match="no such model"):
        connection.ask("GET", "/x")


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": "plain"}', b'{"error": "\xff"}'])
def test_a_page_of_something_else_is_no_refusal(
    server: ModelsServer, connection: Connection, body: bytes
) -> None:
    server.answers["GET /x"] = (404, body)
    with pytest.raises(UnreachableError, match="is --url right"):
        connection.ask("GET", "/x")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9", "localhost:9", "127.0.0.1:9", "http://[x", "http://127.0.0.1:99999"],
)
def test_where_no_server_is_one_sentence_says_so(url: str) -> None:
    with pytest.raises(UnreachableError, match=r"no server answers at|is no URL"):
        Connection(url).ask("GET", "/x")


def test_an_address_of_openai_will_do(server: ModelsServer) -> None:
    server.answers["GET /v1/models"] = (200, {"data": []})
    with closing(Connection(f"{server.url}/v1/")) as connection:
        assert connection.ask("GET", "/v1/models") == b'{"data": []}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused_before_it_is_sent(
    server: ModelsServer, connection: Connection, value: float
) -> None:
    with pytest.raises(InvalidRequestError, match="JSON"):
        connection.ask("POST", "/x", {"idle_unload_after": value})
    assert server.requests == []


def test_a_stream_that_breaks_is_told_from_one_that_ends(
    server: ModelsServer, connection: Connection
) -> None:
    server.streams.extend([[{"n": 1}], [{"n": 1}, BREAK]])
    with connection.stream(*EVENTS.split()) as events:
        assert list(events) == [Event("model", b'{"n": 1}')]
    with connection.stream(*EVENTS.split()) as events:
        assert next(events).name == "model"
        with pytest.raises(ConnectionLostError, match="broke"):
            next(events)


def test_a_refused_stream_raises_before_its_block(
    server: ModelsServer, connection: Connection
) -> None:
    server.answers[EVENTS] = (503, refusal("draining", "shutting down"))
    with (
        pytest.raises(HeadraceError, match="shutting down"),
        connection.stream(*EVENTS.split()),
    ):
        pytest.fail("the block was entered")


def test_answers_refusals_and_events_are_told_as_they_came(server: ModelsServer) -> None:
    told: list[bytes] = []
    server.answers |= {"GET /x": (200, b'{"a":  1}'), "GET /y": (404, refusal("conflict", "no"))}
    server.answers["GET /z"] = (404, b"<html>")
    server.streams.append([": \n\n", {"n": 1}])
    with closing(Connection(server.url, on_answer=told.append)) as connection:
        connection.ask("GET", "/x")
        with pytest.raises(ConflictError):
            connection.ask("GET", "/y")
        with pytest.raises(UnreachableError):
            connection.ask("GET", "/z")
        with connection.stream(*EVENTS.split()) as events:
            list(events)
    assert [told[0], told[2]] == [b'{"a":  1}', b'{"n": 1}']
    assert b'"conflict"' in told[1]
    assert len(told) == 3


def test_an_event_has_a_name_and_may_have_several_lines() -> None:
    lines = [b": hello", b"", b"data: a", b"data:b", b"", b"event: x", b"", b"data: c", b""]
    assert list(_parse(lines)) == [Event("message", b"a\nb"), Event("message", b"c")]


def test_an_event_that_the_end_cuts_short_is_none() -> None:
    assert list(_parse([b"data: a", b"", b"data: b"])) == [Event("message", b"a")]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5),
    data=st.data(),
)
def test_events_do_not_depend_on_how_bytes_arrive(texts: list[str], data: st.DataObject) -> None:
    stream = "".join(event(text) for text in texts).encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    ends = [*cuts, len(stream)]
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], ends, strict=True)]
    events = list(_parse(_lines(chunks)))
    assert [f"event: model\ndata: {each.data.decode()}\n\n" for each in events] == [
        event(text) for text in texts
    ]
