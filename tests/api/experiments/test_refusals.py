"""Without a registry: what is asked here reaches none."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.experiments.conftest import (
    PATH,
    asked,
    asking,
    created,
    error_of,
    running_experiments,
    serve,
)
from api.scripted import ScriptedRegistry
from headrace.api.experiments.routes import ExperimentRoutes
from headrace.api.openapi import openapi_document
from headrace.routing.experiments.experiments import Experiments
from routing.experiments.scripted_versions import ScriptedVersions


@pytest.fixture
async def experiments() -> AsyncIterator[Experiments]:
    async with running_experiments(ScriptedVersions("m0@1", "m0@2")) as experiments:
        yield experiments


@pytest.fixture
async def http(experiments: Experiments) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(ScriptedRegistry(), experiments) as client:
        yield client


async def test_feedback_counts_once(http: httpx.AsyncClient, experiments: Experiments) -> None:
    await created(http, metric="feedback")
    serve(experiments, 1)
    body = {"request_id": "r0", "score": 0.25}
    answer = await http.post("/api/v1/feedback", json=body)
    assert (answer.status_code, answer.json()) == (200, body)
    again = await http.post("/api/v1/feedback", json=body)
    assert error_of(again) == (409, "feedback_given", "request_id")
    unknown = await http.post("/api/v1/feedback", json={**body, "request_id": "r1"})
    assert error_of(unknown) == (404, "request_not_found", "request_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"request_id": "r0", "score": 1.01}, "score"),
        ({"request_id": "r0", "score": -1}, "score"),
        ({"request_id": "r0", "score": "good"}, "score"),
        ({"request_id": "r0"}, "score"),
        ({"request_id": "", "score": 1}, "request_id"),
        ({"score": 1}, "request_id"),
        ({"request_id": "r0", "score": 1, "stars": 5}, "stars"),
    ],
)
async def test_feedback_that_is_none_is_refused_by_its_field(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    answer = await http.post("/api/v1/feedback", json=body)
    assert error_of(answer) == (400, "invalid_value", param)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"alpha": 0}, 400, "alpha"),
        ({"alpha": 1}, 400, "alpha"),
        ({"alpha": "small"}, 400, "alpha"),
        ({"metric": "tokens"}, 400, "metric"),
        ({"min_samples": 0}, 400, "min_samples"),
        ({"min_samples": 2.5}, 400, "min_samples"),
        ({"variants": []}, 400, "variants"),
        ({"variants": [{"model_id": "m0@1"}]}, 400, "variants"),
        ({"variants": [{"model_id": "m0@1"}] * 2}, 400, "variants.1.model_id"),
        (
            {"variants": [{"model_id": f"m0@{i}", "weight": 0} for i in (1, 2)]},
            400,
            "variants",
        ),
        ({"variants": [{"model_id": "m0@1"}, {"model_id": "m0@9"}]}, 404, "variants.1.model_id"),
        ({"variants": [{"model_id": "m0@1"}, {"weight": 1}]}, 400, "variants.1.model_id"),
        (
            {"variants": [{"model_id": "m0@1"}, {"model_id": "m0@2", "weight": "x"}]},
            400,
            "variants.1.weight",
        ),
        ({"name": "other"}, 400, "variants.0.model_id"),
        ({"winner": "m0@1"}, 400, "winner"),
    ],
)
async def test_what_makes_no_experiment_is_refused_by_its_field(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await http.post(PATH, json=asked(**fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await http.get(PATH)).json() == {"experiments": []}


async def test_a_metric_that_is_none_is_told_what_there_is(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=asked(metric="tokens"))
    message = "metric: expected one of success, latency, feedback, got tokens."
    assert answer.json()["error"]["message"] == message


async def test_a_second_experiment_on_a_name_waits(http: httpx.AsyncClient) -> None:
    first = await created(http)
    answer = await http.post(PATH, json=asked())
    assert error_of(answer) == (409, "conflict", "name")
    assert first in answer.json()["error"]["message"]


async def test_what_is_not_there_and_what_is_not_found_yet(http: httpx.AsyncClient) -> None:
    unknown = (await http.get(f"{PATH}/exp-0"), await http.post(f"{PATH}/exp-0/conclude"))
    for answer in unknown:
        assert error_of(answer) == (404, "experiment_not_found", None)
    experiment_id = await created(http)
    early = await http.post(f"{PATH}/{experiment_id}/conclude", json={})
    assert error_of(early) == (409, "conflict", "winner")
    other = await http.post(f"{PATH}/{experiment_id}/conclude", json={"winner": "m0@3"})
    assert error_of(other) == (400, "invalid_value", "winner")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/exp-0/conclude", "/api/v1/feedback"])
async def test_pages_of_other_machines_may_ask_nothing(http: httpx.AsyncClient, path: str) -> None:
    headers = {"Origin": "https://evil.example", "Content-Type": "application/json"}
    answer = await http.post(path, json={}, headers=headers)
    assert error_of(answer)[:2] == (403, "foreign_origin")


async def test_a_browsers_form_concludes_nothing(http: httpx.AsyncClient) -> None:
    experiment_id = await created(http)
    answer = await http.post(
        f"{PATH}/{experiment_id}/conclude", headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert error_of(answer)[::2] == (400, "Content-Type")


def test_every_route_is_described() -> None:
    router = ExperimentRoutes(None, None, "").router()  # type: ignore[arg-type]
    document = openapi_document([router], title="t", version="0", description="d")
    assert set(document["paths"]) == {
        PATH,
        f"{PATH}/{{experiment_id}}",
        f"{PATH}/{{experiment_id}}/conclude",
        "/api/v1/feedback",
    }
    schemas = document["components"]["schemas"]
    assert {"ExperimentState", "ExperimentRequest", "VariantState", "Difference"} <= set(schemas)
    metric = schemas["ExperimentRequest"]["properties"]["metric"]
    assert metric["enum"] == ["success", "latency", "feedback"]
