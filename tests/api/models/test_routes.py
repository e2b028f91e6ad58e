import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.models.conftest import DECLARED, GOOD, error_of, post
from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    InsufficientMemoryError,
    ModelFileError,
)
from headrace.registry.registry import Registry, Swap
from headrace.registry.spec import ModelSpec
from scripted_serving import Served

CHECKS = [
    "exists_and_ready",
    "no_concurrent_operation",
    "system_healthy",
    "health_score",
    "not_already_active",
]

pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
async def served(registry: Registry) -> Served:
    """With a model that answers."""
    served = Served(registry)
    await registry.load(ModelSpec(name="m0", source=GOOD), who="test")
    await served.until(lambda status: status.state == "active")
    return served


async def load(http: httpx.AsyncClient, served: Served, **body: Any) -> dict[str, Any]:
    answer = await post(http, "load", **{"name": "m0", "source": GOOD, **body})
    assert answer.status_code == 202, answer.text
    model_id = answer.json()["model_id"]
    await served.until(lambda s: s.model_id == model_id and s.state in ("ready", "active"))
    return answer.json()


async def test_a_model_is_told_by_its_id_and_by_its_name(http: httpx.AsyncClient) -> None:
    by_id = (await http.get("/api/v1/models/m0@1")).json()
    by_name = (await http.get("/api/v1/models/m0")).json()
    (listed,) = (await http.get("/api/v1/models")).json()["models"]
    for model in (by_id, by_name, listed):
        assert (model["model_id"], model["name"], model["version"]) == ("m0@1", "m0", 1)
        assert (model["state"], model["active"], model["answering"]) == ("active", True, True)
        assert (model["phase"], model["reason"], model["health_score"]) == ("", None, 1.0)
        assert (model["executor"], model["precision"]) == ("script", "fp32")
        assert (model["replicas"], model["restarts"], model["leases"]) == (1, 0, 0)
        assert model["started_at"] <= model["loaded_at"]


async def test_a_version_is_loaded_swapped_to_and_rolled_back(
    http: httpx.AsyncClient, served: Served
) -> None:
    async def answering() -> str:
        body = {"model": "m0", "prompt": "count 2"}
        return (await http.post("/v1/completions", json=body)).headers["x-headrace-version"]

    assert await load(http, served) == {"model_id": "m0@2", "state": "loading"}
    assert (await http.get("/api/v1/models/m0@2")).json()["state"] == "ready"
    assert await answering() == "m0@1"
    swap = await post(http, "swap", model_id="m0@2")
    assert swap.status_code == 200
    assert swap.json()["duration_ms"] > 0
    assert (swap.json()["previous"], swap.json()["active"]) == ("m0@1", "m0@2")
    assert await answering() == "m0@2"
    rollback = (await post(http, "rollback", name="m0")).json()
    assert (rollback["previous"], rollback["active"]) == ("m0@2", "m0@1")
    assert await answering() == "m0@1"


async def test_a_version_left_out_is_the_next_one(http: httpx.AsyncClient, served: Served) -> None:
    assert (await load(http, served, version=5))["model_id"] == "m0@5"
    assert (await load(http, served, version=None))["model_id"] == "m0@6"
    assert (await load(http, served, name="new"))["model_id"] == "new@1"
    await served.until(lambda status: status.model_id == "new@1" and status.state == "active")


async def test_loads_at_one_time_that_choose_no_version_get_one_each(
    http: httpx.AsyncClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = served.registry.load, asyncio.Event()

    async def one_after_the_other(spec: ModelSpec, *, who: str) -> object:
        """Both have chosen the same number by then."""
        if not begun.is_set():
            begun.set()
            await both_have_chosen.wait()
            return await begin(spec, who=who)
        both_have_chosen.set()
        await served.until(lambda status: status.model_id == "m0@2")
        return await begin(spec, who=who)

    both_have_chosen = asyncio.Event()
    monkeypatch.setattr(served.registry, "load", one_after_the_other)
    body = {"name": "m0", "source": GOOD}
    answers = await asyncio.gather(*(post(http, "load", **body) for _ in range(2)))
    assert [answer.status_code for answer in answers] == [202, 202], answers[1].text
    assert {answer.json()["model_id"] for answer in answers} == {"m0@2", "m0@3"}


async def test_a_load_that_chooses_its_version_is_told_that_it_is_taken(
    http: httpx.AsyncClient, served: Served
) -> None:
    await load(http, served, version=2)
    answer = await post(http, "load", name="m0", source=GOOD, version=2)
    assert error_of(answer)[:2] == (409, "conflict")
    assert (await load(http, served, version=None))["model_id"] == "m0@3"


async def test_a_change_gets_the_time_that_its_request_has(
    http: httpx.AsyncClient, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    async def note(*_: object, who: str, deadline: float) -> Swap:
        seen.append(deadline - time.monotonic())
        return Swap(previous=None, active=who, seconds=0.0)

    for change in ("swap", "replace", "rollback"):
        monkeypatch.setattr(registry, change, note)
    for operation, body in (
        ("swap", {"model_id": "m0@2"}),
        ("swap", {"model_id": "m0@2", "mode": "queue", "source": GOOD}),
        ("rollback", {"name": "m0"}),
    ):
        path, headers = f"/api/v1/models/{operation}", {"X-Request-Timeout": "5"}
        answer = await http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    assert all(4 < seconds <= 5 for seconds in seen)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (ModelFileError("no such file"), 400, "source"),
        (ConfigurationError("too little", param="kv_cache_memory"), 400, "engine.kv_cache_memory"),
        (ConfigurationError("no", param="storage.database_url"), 500, "storage.database_url"),
    ],
)
@pytest.mark.parametrize("operation", ["load", "replace"])
async def test_what_cannot_be_loaded_is_a_fault_of_whoever_described_it(
    http: httpx.AsyncClient,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    *,
    operation: str,
    error: HeadraceError,
    status: int,
    param: str,
) -> None:
    async def refuse(_spec: ModelSpec, **_: object) -> None:
        raise error

    monkeypatch.setattr(registry, operation, refuse)
    if operation == "load":
        answer = await post(http, "load", name="m0", source=GOOD)
    else:
        answer = await post(http, "swap", model_id="m0@2", mode="queue", source=GOOD)
    assert error_of(answer)[::2] == (status, param)


async def test_what_a_client_says_of_a_version_reaches_it(
    http: httpx.AsyncClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ModelSpec, str]] = []

    async def note(spec: ModelSpec, *, who: str) -> object:
        seen.append((spec, who))
        return served.status

    monkeypatch.setattr(served.registry, "load", note)
    await post(
        http,
        "load",
        name="m0",
        source=GOOD,
        engine={"max_num_seqs": 3, "kv_cache_memory": "1MiB"},
        replicas=2,
        retain="cold",
        idle_unload_after=7,
        golden=[{"prompt": "a", "expected": "b"}],
    )
    ((spec, who),) = seen
    assert (spec.model_id, spec.source, who) == ("m0@2", GOOD, "http 127.0.0.1")
    assert (spec.engine.max_num_seqs, spec.executor.kv_cache_memory) == (3, 1 << 20)
    assert spec.engine.max_queued_requests == 9
    assert (spec.replicas, spec.retain, spec.idle_unload_after) == (2, "cold", 7.0)
    assert spec.golden[0].expected == "b"


async def test_a_version_that_is_there_is_not_loaded_again(http: httpx.AsyncClient) -> None:
    answer = await post(http, "load", name="m0", source=GOOD, version=1)
    assert error_of(answer)[:2] == (409, "conflict")


async def test_a_model_that_does_not_fit_is_refused(
    http: httpx.AsyncClient, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_spec: ModelSpec, *, who: str) -> None:
        raise InsufficientMemoryError(f"{who}: 9 GiB are needed, 8 GiB are free")

    monkeypatch.setattr(registry, "load", refuse)
    answer = await post(http, "load", name="m0", source=GOOD)
    assert error_of(answer)[:2] == (409, "insufficient_memory")


async def test_a_path_under_a_root_may_be_named(
    http: httpx.AsyncClient, served: Served, tmp_path: Path
) -> None:
    await load(http, served, source=str(tmp_path / "models" / "chat.gguf"))


async def test_what_the_configuration_names_may_be_loaded_again(
    http: httpx.AsyncClient, served: Served
) -> None:
    await load(http, served, source=DECLARED)


async def test_an_unsafe_swap_shows_its_report(http: httpx.AsyncClient) -> None:
    answer = await post(http, "swap", model_id="m0@1")
    assert error_of(answer) == (400, "unsafe_swap", "model_id")
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    report = answer.json()["safety"]
    assert report == (await http.get("/api/v1/models/m0@1/swap/safety")).json()
    assert (report["model_id"], report["safe"]) == ("m0@1", False)
    assert [check["name"] for check in report["checks"]] == CHECKS
    assert [check["passed"] for check in report["checks"]] == [True, True, True, True, False]
    assert all(check["detail"] for check in report["checks"])


async def test_a_version_that_is_loading_is_not_safe(http: httpx.AsyncClient) -> None:
    await post(http, "load", name="m0", source="pypi:slow")
    report = (await http.get("/api/v1/models/m0@2/swap/safety")).json()
    assert not report["safe"]
    assert report["checks"][0]["passed"] is False
    assert (await post(http, "m0@2/unload")).status_code == 202


async def test_a_version_that_fails_leaves_the_old_one_and_tells_why(
    http: httpx.AsyncClient, served: Served
) -> None:
    await post(http, "load", name="m0", source="pypi:missing")
    await served.until(lambda status: status.state == "failed")
    failed = (await http.get("/api/v1/models/m0@2")).json()
    assert "no such file" in failed["reason"]
    assert failed["answering"] is False
    body = {"prompt": "count 1"}  # the model may still be left out: there is one that answers
    assert (await http.post("/api/v1/generate", json=body)).status_code == 200


async def test_a_swap_in_place_loads_what_it_names(http: httpx.AsyncClient) -> None:
    answer = await post(http, "swap", model_id="m0@4", mode="queue", source=GOOD)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["previous"], answer.json()["active"]) == ("m0@1", "m0@4")
    assert (await http.get("/api/v1/models/m0")).json()["version"] == 4


async def test_a_swap_in_place_that_fails_brings_the_old_version_back(
    http: httpx.AsyncClient,
) -> None:
    answer = await post(http, "swap", model_id="m0@2", mode="queue", source="pypi:missing")
    assert error_of(answer) == (400, "invalid_value", "source")
    assert "no such file" in answer.json()["error"]["message"]
    model = (await http.get("/api/v1/models/m0")).json()
    assert (model["model_id"], model["answering"]) == ("m0@1", True)


async def test_the_queue_mode_without_a_source_swaps_to_what_is_loaded(
    http: httpx.AsyncClient, served: Served
) -> None:
    await load(http, served)
    answer = await post(http, "swap", model_id="m0@2", mode="queue")
    assert answer.json()["active"] == "m0@2"


async def test_there_may_be_nothing_to_roll_back_to(http: httpx.AsyncClient) -> None:
    assert error_of(await post(http, "rollback", name="m0"))[:2] == (409, "conflict")
    answer = await post(http, "rollback", name="m0", to=1)
    assert error_of(answer) == (400, "invalid_value", "to")


async def test_a_version_is_unloaded_by_its_id_unless_it_is_active(
    http: httpx.AsyncClient, served: Served
) -> None:
    await load(http, served)
    assert error_of(await http.post("/api/v1/models/m0@1/unload"))[:2] == (409, "conflict")
    answer = await http.post("/api/v1/models/m0@2/unload")
    assert answer.status_code == 202
    assert answer.json() == {"models": [{"model_id": "m0@2", "state": "unloading"}]}


async def test_a_model_is_unloaded_by_its_name(http: httpx.AsyncClient, served: Served) -> None:
    await load(http, served)
    answer = await http.post("/api/v1/models/m0/unload")
    assert {each["model_id"] for each in answer.json()["models"]} == {"m0@1", "m0@2"}
    answer = await http.post("/v1/completions", json={"model": "m0", "prompt": "count 1"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "header", [{"Origin": "https://localhost:3000"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_of_another_site_cannot_unload_unasked(
    http: httpx.AsyncClient, served: Served, header: dict[str, str]
) -> None:
    path = "/api/v1/models/m0/unload"
    assert error_of(await http.post(path, headers=header)) == (400, "invalid_value", "Content-Type")
    form = await http.post(path, headers=header, data={"a": "b"})
    assert error_of(form) == (400, "invalid_value", "Content-Type")
    assert served.status.state == "active"
    # which a browser sends to another site only once that has agreed, and we never do
    asked = await http.post(path, headers={**header, "Content-Type": "application/json"})
    assert asked.status_code == 202


@pytest.mark.parametrize("origin", ["http://evil.example:8000", "null", "http://127.0.0.1.evil.x"])
async def test_a_page_whose_name_was_made_to_lead_here_changes_nothing(
    http: httpx.AsyncClient, served: Served, origin: str
) -> None:
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    bodies = {
        "load": {"name": "m0", "source": GOOD},
        "swap": {"model_id": "m0@1"},
        "rollback": {"name": "m0"},
        "m0/unload": {},
    }
    for operation, body in bodies.items():
        path = f"/api/v1/models/{operation}"
        answer = await http.post(path, headers=headers, json=body)
        assert error_of(answer) == (403, "foreign_origin", None)
    assert [(status.model_id, status.state) for status in served.registry.statuses()] == [
        ("m0@1", "active")
    ]


async def test_history_tells_what_was_done_and_by_whom(
    http: httpx.AsyncClient, served: Served
) -> None:
    await load(http, served)
    await load(http, served, name="other")
    await post(http, "swap", model_id="m0@2")
    changes = (await http.get("/api/v1/models/history", params={"name": "m0"})).json()["changes"]
    swap = changes[0]
    assert (swap["kind"], swap["name"], swap["outcome"]) == ("swap", "m0", "done")
    assert (swap["previous"], swap["active"], swap["who"]) == ("m0@1", "m0@2", "http 127.0.0.1")
    assert swap["started_at"] <= swap["ended_at"]
    assert {change["name"] for change in changes} == {"m0"}
    answer = await http.get("/api/v1/models/history", params={"limit": 1})
    assert [change["kind"] for change in answer.json()["changes"]] == ["swap"]


async def test_a_server_that_shuts_down_changes_nothing(
    http: httpx.AsyncClient, registry: Registry
) -> None:
    await registry.drain(0)
    for answer in (
        await post(http, "load", name="m0", source=GOOD),
        await post(http, "swap", model_id="m0@1"),
        await post(http, "swap", model_id="m0@2", mode="queue", source=GOOD),
        await post(http, "rollback", name="m0"),
    ):
        assert error_of(answer)[:2] == (503, "draining")
