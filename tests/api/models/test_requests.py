"""What is refused before a model is touched, so a registry without any will do."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.models.conftest import GOOD, error_of, post
from headrace.api.models.requests import new_spec
from headrace.endpoints import UpstreamConfig
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.settings import Settings

UPSTREAM = {"url": "https://api.example.org/v1", "api_key_env": "GPT_KEY"}
BELOW = {"url": "http://gpu.example.org/team/v1"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """With an upstream that has a key, and a root for those that have none."""
    roots = ("http://gpu.example.org/team",)
    return replace(
        settings,
        server=settings.server.model_copy(update={"upstream_roots": roots}),
        models=(
            *settings.models,
            ModelSpec(name="gpt", source=UPSTREAM["url"], upstreams=(UpstreamConfig(**UPSTREAM),)),
        ),
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "m1", None),
        ("GET", "m0@2", None),
        ("GET", "m0@x", None),
        ("GET", "m0@2/swap/safety", None),
        ("GET", "m0/swap/safety", None),
        ("POST", "m1/unload", None),
        ("POST", "m0@2/unload", None),
    ],
)
async def test_what_is_not_there_is_a_404(
    http: httpx.AsyncClient, method: str, path: str, body: object
) -> None:
    answer = await http.request(method, f"/api/v1/models/{path}", json=body)
    assert error_of(answer)[:2] == (404, "model_not_found")


@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("swap", {"model_id": "m0@2"}, "model_id"),
        ("swap", {"model_id": "m0"}, "model_id"),
        ("swap", {"model_id": "m1@1", "mode": "queue", "source": GOOD}, "model_id"),
        ("rollback", {"name": "m1"}, "name"),
    ],
)
async def test_what_is_not_there_is_a_fault_of_the_field_that_names_it(
    http: httpx.AsyncClient, operation: str, body: dict[str, object], param: str
) -> None:
    assert error_of(await post(http, operation, **body)) == (404, "model_not_found", param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"source": GOOD}, "name"),
        ({"name": "m0"}, "source"),
        ({"name": "a/b", "source": GOOD}, "name"),
        ({"name": "", "source": GOOD}, "name"),
        ({"name": 1, "source": GOOD}, "name"),
        ({"name": "m0", "source": GOOD, "version": 0}, "version"),
        ({"name": "m0", "source": GOOD, "version": True}, "version"),
        ({"name": "m0", "source": GOOD, "version": 1 << 80}, "version"),
        ({"name": "m0", "source": GOOD, "versoin": 1}, "versoin"),
        ({"name": "m0", "source": GOOD, "runtime": "onnx"}, "runtime"),
        ({"name": "m0", "source": GOOD, "retain": "hot"}, "retain"),
        ({"name": "m0", "source": GOOD, "replicas": 1000}, "replicas"),
        ({"name": "m0", "source": GOOD, "idle_unload_after": 0}, "idle_unload_after"),
        ({"name": "m0", "source": GOOD, "engine": 3}, "engine"),
        ({"name": "m0", "source": GOOD, "engine": {"max_num_seqs": 0}}, "engine.max_num_seqs"),
        ({"name": "m0", "source": GOOD, "engine": {"num_thread": 2}}, "engine.num_thread"),
        ({"name": "m0", "source": GOOD, "engine": {"executor": "torch"}}, "engine.executor"),
        ({"name": "m0", "source": GOOD, "golden": [{"prompt": "a"}]}, "golden.0.expected"),
        ({"name": "m0", "source": "/etc/passwd"}, "source"),
        ({"name": "m0", "source": "good"}, "source"),
        ({"name": "events", "source": GOOD}, "name"),
        ({"name": "m0", "source": GOOD, "engine": {"a": [[[[[[1]]]]]]}}, "engine.a"),
        (
            {"name": "m0", "source": GOOD, "engine": {"a": json.loads("[" * 400 + "]" * 400)}},
            "engine",
        ),
    ],
)
async def test_what_is_wrong_with_a_load_is_named_by_its_field(
    http: httpx.AsyncClient, registry: Registry, body: dict[str, object], param: str
) -> None:
    answer = await post(http, "load", **body)
    assert error_of(answer) == (400, "invalid_value", param)
    assert registry.statuses() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"name": "\xff"}'])
@pytest.mark.parametrize("operation", ["load", "swap", "rollback"])
async def test_a_body_that_is_no_object_is_refused(
    http: httpx.AsyncClient, operation: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await http.post(f"/api/v1/models/{operation}", content=body, headers=headers)
    assert error_of(answer)[:2] == (400, "invalid_value")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model_id"),
        ({"model_id": 2}, "model_id"),
        ({"model_id": "m0@2", "mode": "force"}, "mode"),
        ({"model_id": "m0@2", "source": GOOD}, "source"),
        ({"model_id": "m0@2", "engine": {}}, "engine"),
        ({"model_id": "m0@2", "mode": "queue", "engine": {}}, "engine"),
        ({"model_id": "m0@2", "name": "m0"}, "name"),
        ({"model_id": "m0", "mode": "queue", "source": GOOD}, "model_id"),
        ({"model_id": "m0@0", "mode": "queue", "source": GOOD}, "model_id"),
        ({"model_id": "m0@2", "mode": "queue", "source": "/etc"}, "source"),
    ],
)
async def test_what_is_wrong_with_a_swap_is_named_by_its_field(
    http: httpx.AsyncClient, body: dict[str, object], param: str
) -> None:
    assert error_of(await post(http, "swap", **body)) == (400, "invalid_value", param)


@pytest.mark.parametrize("operation", ["load", "swap", "rollback"])
async def test_a_form_is_refused(http: httpx.AsyncClient, operation: str) -> None:
    answer = await http.post(f"/api/v1/models/{operation}", data={"name": "m0", "source": GOOD})
    assert error_of(answer) == (400, "invalid_value", "Content-Type")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "", "x", "1.5", "²", "9" * 5000])
async def test_a_limit_out_of_range_is_named(http: httpx.AsyncClient, limit: str) -> None:
    answer = await http.get("/api/v1/models/history", params={"limit": limit})
    assert error_of(answer) == (400, "invalid_value", "limit")


@pytest.mark.parametrize("name", ["", "chat@2", "a/b", "a\0b"])
async def test_history_is_asked_for_by_a_name(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get("/api/v1/models/history", params={"name": name})
    assert error_of(answer) == (400, "invalid_value", "name")
    answer = await http.get("/api/v1/models/history", params={"name": "never-heard-of"})
    assert answer.json() == {"changes": []}


async def test_a_method_that_a_route_does_not_answer_is_told(http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/v1/models/load")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_the_document_describes_the_routes(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    loading = paths["/api/v1/models/load"]["post"]["responses"]
    assert set(loading) == {"202", "default"}
    query = paths["/api/v1/models/history"]["get"]["parameters"]
    assert [each["name"] for each in query] == ["name", "limit"]
    assert "/api/v1/models/{model_id}/swap/safety" in paths


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"upstreams": []}, "source"),
        ({"upstreams": {"url": "http://h/v1"}}, "upstreams"),
        ({"upstreams": ["http://h/v1"]}, "upstreams.0"),
        ({"upstreams": [{}]}, "upstreams.0.url"),
        ({"upstreams": [BELOW], "replicas": 2}, "replicas"),
        ({"upstreams": [BELOW], "routing": {"strategy": "best"}}, "routing.strategy"),
        ({"upstreams": [BELOW, BELOW]}, "upstreams.1.name"),
        ({"upstreams": [BELOW, {"url": "https://evil.org/v1"}]}, "upstreams.1.url"),
        ({"upstreams": [{**UPSTREAM, "url": "https://evil.org/v1"}]}, "upstreams.0.url"),
        ({"upstreams": [{**UPSTREAM, "url": "http://api.example.org/v1"}]}, "upstreams.0.url"),
        ({"upstreams": [{**UPSTREAM, "api_key_env": "HOME"}]}, "upstreams.0.url"),
        ({"upstreams": [{**UPSTREAM, "api_key_env": None}]}, "upstreams.0.url"),
        ({"upstreams": [{**BELOW, "api_key_env": "GPT_KEY"}]}, "upstreams.0.url"),
        ({"upstreams": [{**BELOW, "ca_file": "/etc/passwd"}]}, "upstreams.0.ca_file"),
        ({"upstreams": [BELOW, {**BELOW, "ca_file": None}]}, "upstreams.1.ca_file"),
        ({"upstreams": [{**BELOW, "ca_file": "~root/x"}]}, "upstreams.0.ca_file"),
        ({"upstreams": [{**UPSTREAM, "ca_file": "~nobody-there/x"}]}, "upstreams.0.ca_file"),
        ({"upstreams": [{**BELOW, "name": "a\nb"}]}, "upstreams.0.name"),
        ({"upstreams": [{**BELOW, "url": "http://a:b@gpu.example.org/team"}]}, "upstreams.0.url"),
        ({"source": "http://127.0.0.1:6379/v1"}, "source"),
        ({"source": UPSTREAM["url"]}, "source"),
        ({"source": "HTTP://evil.org/v1"}, "source"),
        ({"source": "/etc/passwd", "upstreams": [BELOW]}, "source"),
        (
            {"source": BELOW["url"], "upstreams": [{"url": "https://evil.org/v1"}]},
            "upstreams.0.url",
        ),
        ({"source": "https://evil.org/v1", "upstreams": [BELOW]}, "source"),
    ],
)
async def test_a_client_leads_the_server_nowhere_and_takes_no_key_along(
    http: httpx.AsyncClient, registry: Registry, said: dict[str, object], param: str
) -> None:
    answer = await post(http, "load", name="m0", **said)
    assert error_of(answer) == (400, "invalid_value", param)
    answer = await post(http, "swap", model_id="m0@1", mode="queue", **said)
    if "source" in said or said["upstreams"]:
        assert error_of(answer) == (400, "invalid_value", param)
    assert registry.statuses() == []


@pytest.mark.parametrize(
    "said",
    [
        {"upstreams": [UPSTREAM]},
        {"upstreams": [BELOW]},
        {"source": BELOW["url"]},
        {"source": GOOD, "upstreams": [BELOW, UPSTREAM], "routing": {"strategy": "weighted"}},
    ],
)
async def test_what_a_client_may_have_is_what_it_describes(
    settings: Settings, said: dict[str, Any]
) -> None:
    spec = new_spec({"name": "m0", "version": 1, **said}, settings)
    own = [UpstreamConfig(**each) for each in said.get("upstreams", ())]
    assert [each for each in spec.upstreams if each.url != said.get("source")] == own
    assert spec.has_workers == (said.get("source") == GOOD)


async def test_a_version_that_is_there_takes_no_upstreams(http: httpx.AsyncClient) -> None:
    answer = await post(http, "swap", model_id="m0@2", upstreams=[BELOW])
    assert error_of(answer) == (400, "invalid_value", "upstreams")
