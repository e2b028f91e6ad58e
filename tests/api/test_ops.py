import httpx
import pytest

from api.scripted import ScriptedModel, ScriptedRegistry, info
from headrace.api.serving import Readiness
from headrace.telemetry.metrics import TABLE


async def test_live_answers_whatever_the_models_do(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.models = []
    assert (await http.get("/health/live")).status_code == 200


async def test_ready_needs_a_model_that_answers(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    assert (await http.get("/health/ready")).status_code == 200
    registry.models = []
    answer = await http.get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_a_server_that_is_leaving_is_not_ready_but_still_answers(
    http: httpx.AsyncClient, readiness: Readiness, path: str
) -> None:
    readiness.is_leaving = True
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["status"]) == (503, "draining")
    assert (await http.post("/api/v1/generate", json={"prompt": "x"})).status_code == 200


async def test_health_tells_each_version(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/health")).json()
    assert answer["status"] == "ok"
    assert answer["models"][0]["model_id"] == "chat@1"
    assert answer["models"][0]["state"] == "active"
    assert answer["models"][0]["executor"] == "scripted"


@pytest.mark.parametrize("path", ["/health", "/api/v1/models"])
async def test_each_endpoint_is_told(http: httpx.AsyncClient, path: str) -> None:
    (model,) = (await http.get(path)).json()["models"]
    assert model["endpoints"] == [
        {
            "name": "gpu-1",
            "kind": "worker",
            "taking": False,
            "breaker": "half_open",
            "in_flight": 3,
            "latency_seconds": 0.25,
            "weight": 2.0,
            "reason": "it answered 500",
        }
    ]


async def test_every_declared_metric_is_observed(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    text = (await http.get("/metrics")).text
    samples = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines()}
    for row in TABLE:
        name = f"headrace_{row.name}" + ("_count" if row.kind == "histogram" else "")
        assert name in samples, name
        assert f"# HELP headrace_{row.name.removesuffix('_total')}" in text


async def test_the_process_tells_its_own_memory_and_time(http: httpx.AsyncClient) -> None:
    text = (await http.get("/metrics")).text
    assert "headrace_process_resident_memory_bytes" in text
    assert "headrace_process_cpu_seconds_total" in text


async def test_metrics_count_what_was_asked_and_what_was_said(http: httpx.AsyncClient) -> None:
    for _ in range(3):
        await http.post("/v1/completions", json={"model": "chat", "prompt": "x", "n": 2})
    lines = (await http.get("/metrics")).text.splitlines()
    by_model = 'model="chat",version="1"'
    assert f'headrace_requests_total{{finish_reason="stop",{by_model}}} 3.0' in lines
    assert f"headrace_time_to_first_token_seconds_count{{{by_model}}} 3.0" in lines
    assert f"headrace_inter_token_latency_seconds_count{{{by_model}}} 30.0" in lines
    assert (
        'headrace_http_requests_total{method="POST",route="/v1/completions",status="2xx"} 3.0'
        in lines
    )


async def test_metrics_as_json_have_quantiles(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    answer = (await http.get("/metrics", headers={"Accept": "application/json"})).json()
    (first_token,) = answer["time_to_first_token_seconds"]
    assert first_token["model"] == "chat"
    assert 0 <= first_token["p50"] <= first_token["p95"] <= first_token["p99"]
    assert answer["kv_blocks_free"] == [{"model": "chat", "version": "1", "value": 64}]


async def test_each_app_counts_for_itself(http: httpx.AsyncClient) -> None:
    text = (await http.get("/metrics")).text
    assert "headrace_requests_total{" not in text


async def test_the_document_describes_every_route_and_resolves(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/api/v1/generate", "/tokenize"} <= set(
        document["paths"]
    )
    schemas = document["components"]["schemas"]
    references = set(_references(document))
    assert references
    assert {reference.removeprefix("#/components/schemas/") for reference in references} <= set(
        schemas
    )
    temperature = schemas["ChatCompletionRequest"]["properties"]["temperature"]
    assert temperature["anyOf"][0]["maximum"] == 2


async def test_the_documentation_page_is_there(http: httpx.AsyncClient) -> None:
    assert (await http.get("/docs")).status_code == 200


async def test_version_is_told(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json()["name"] == "headrace"
    assert (await http.get("/")).json()["name"] == "headrace"


async def test_models_are_listed_by_name_and_older_versions_by_id(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.models = [ScriptedModel(info("chat@2")), ScriptedModel(info("chat@1"))]
    listed = (await http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["chat", "chat@1"]


async def test_a_model_that_does_not_answer_yet_is_a_503_of_its_own(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.state = "loading"
    for name in ("chat", "chat@1"):
        answer = await http.get(f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")
        assert answer.headers["retry-after"] == "1"
    assert (await http.get("/v1/models/nope")).status_code == 404


async def test_a_model_that_sleeps_is_listed(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.phase = "idle"
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert (card["id"], card["state"]) == ("chat", "active")
    assert (await http.post("/api/v1/generate", json={"prompt": "x"})).status_code == 200


@pytest.mark.parametrize("phase", ["cold", "restarting", "starting"])
async def test_a_model_without_a_worker_for_another_reason_is_not_listed(
    http: httpx.AsyncClient, registry: ScriptedRegistry, phase: str
) -> None:
    registry.phase = phase
    assert (await http.get("/v1/models")).json()["data"] == []
    assert 'headrace_model_ready{model="chat",version="1"} 0' in (await http.get("/metrics")).text


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for item in node.values() for ref in _references(item)]
    if isinstance(node, list):
        return [ref for item in node for ref in _references(item)]
    return []


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_a_probe_may_leave_out_the_body(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
