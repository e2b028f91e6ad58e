import httpx
import pytest
from fastapi import APIRouter
from starlette.types import Message

from api.raw import connected
from headrace.api.routing import Routes


@pytest.mark.parametrize(
    ("path", "target"),
    [("/version/", "/version"), ("/health/live//?a=%20b", "/health/live?a=%20b")],
)
async def test_a_slash_too_many_leads_to_the_path_without(
    http: httpx.AsyncClient, path: str, target: str
) -> None:
    answer = await http.get(path)
    assert (answer.status_code, answer.headers["location"]) == (307, target)


@pytest.mark.parametrize("path", [b"/nope/", b"//version/", b"/V1/models", b"/version/x"])
async def test_only_known_paths_are_found(url: str, path: bytes) -> None:
    async with connected(url) as (reader, writer):
        writer.write(b"GET %b HTTP/1.1\r\nHost: test\r\n\r\n" % path)
        assert b" 404 " in await reader.readline()


@pytest.mark.parametrize("path", [b"/v1/models/a%0a", b"/v1/models/a%0a/", b"/v1/models/chat%0a"])
async def test_a_line_feed_at_the_end_is_part_of_the_path(url: str, path: bytes) -> None:
    async with connected(url) as (reader, writer):
        writer.write(b"GET %b HTTP/1.1\r\nHost: test\r\n\r\n" % path)
        assert b" 404 " in await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"location" not in head.lower()
        body = await reader.readuntil(b"}}")
        assert b'"not_found"' in body, "it names no model"


@pytest.mark.parametrize(
    ("path", "query", "target"),
    [
        ("//", b"", "/"),
        ("///", b"a=1&b=%20", "/?a=1&b=%20"),
        ("/été 日/", b"", "/%C3%A9t%C3%A9%20%E6%97%A5"),
        ("/plain/", b"a=\r\n \xff", "/plain?a=%0D%0A%20%FF"),
    ],
)
async def test_where_a_path_leads_is_fit_for_a_header(path: str, query: bytes, target: str) -> None:
    router = APIRouter()
    for known in ("/", "/été 日", "/plain"):
        router.get(known)(unheard)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query}
    await Routes([router])(scope, unheard, send)
    assert sent[0]["status"] == 307
    assert dict(sent[0]["headers"])[b"location"].decode() == target


async def unheard() -> Message:
    raise AssertionError


async def test_a_model_with_a_slash_in_its_name_is_one_path_argument(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.get("/v1/models/organisation/model%20x")
    assert "'organisation/model x'" in answer.json()["error"]["message"]


async def test_the_pattern_of_a_path_is_not_a_path(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/models/{model_id:path}")
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_a_path_of_a_pattern_says_which_methods_are_right(http: httpx.AsyncClient) -> None:
    answer = await http.delete("/v1/models/chat")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert (await http.post("/health")).headers["allow"] == "GET, HEAD"


async def test_metrics_name_the_route_and_not_the_path(http: httpx.AsyncClient) -> None:
    await http.get("/v1/models/chat")
    await http.get("/v1/models/none")
    text = (await http.get("/metrics")).text
    route = 'method="GET",route="/v1/models/{model_id:path}"'
    assert f'headrace_http_requests_total{{{route},status="2xx"}} 1.0' in text
    assert f'headrace_http_requests_total{{{route},status="4xx"}} 1.0' in text


async def test_of_a_header_given_twice_the_first_one_counts(url: str) -> None:
    async with connected(url) as (reader, writer):
        writer.write(
            b"GET /version HTTP/1.1\r\nHost: test\r\nX-Request-ID: one\r\nX-Request-ID: two\r\n\r\n"
        )
        assert b"x-request-id: one\r\n" in await reader.readuntil(b"\r\n\r\n")
