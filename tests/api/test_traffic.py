"""Rollouts and experiments as a client meets them: through the whole app."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api.conftest import running
from headrace.api.app import create_app
from headrace.api.connection import StreamingProtocol
from headrace.api.trials import Trials
from headrace.registry.registry import Registry
from headrace.settings import Settings
from scripted_serving import COMMAND, IMPATIENT, Served, load, new_router, unknown_size

GUARDS = {"max_error_rate": 0.2}


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """With two versions of `m0`, the first of which is active."""
    registry = Registry(
        tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT, sizes=unknown_size
    )
    await registry.start([])
    served = Served(registry)
    try:
        for version in (1, 2):
            await load(served, version)
        yield registry
    finally:
        await registry.close()


@pytest.fixture
async def http(registry: Registry, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    trials = Trials(registry)
    app = create_app(registry, trials, settings)
    config = uvicorn.Config(app, port=0, http=StreamingProtocol, lifespan="off", log_config=None)
    await trials.start()
    try:
        async with (
            running(config) as url,
            httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client,
        ):
            yield client
    finally:
        await trials.close()


async def started(http: httpx.AsyncClient, **fields: Any) -> str:
    body = {"name": "m0", "candidate": "m0@2", "guards": GUARDS, "stages": [50, 100], **fields}
    answer = await http.post("/api/v1/rollouts", json=body)
    assert answer.status_code == 202, answer.text
    return f"/api/v1/rollouts/{answer.json()['rollout_id']}"


async def ask(
    http: httpx.AsyncClient, user: str, prompt: str = "count 3", **headers: str
) -> httpx.Response:
    body = {"model": "m0", "prompt": prompt, "user": user, "temperature": 0}
    return await http.post("/v1/completions", json=body, headers=headers)


def endless(user: str) -> dict[str, Any]:
    return {"model": "m0", "prompt": "forever", "user": user, "max_tokens": 900_000}


async def version_for(http: httpx.AsyncClient, user: str) -> str:
    return (await ask(http, user)).headers["X-Headrace-Version"]


async def until(told: Callable[[dict[str, Any]], bool], http: httpx.AsyncClient, path: str) -> Any:
    async with asyncio.timeout(20):
        while not told(state := (await http.get(path)).json()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return state


async def test_users_are_shared_out_and_keep_their_version(http: httpx.AsyncClient) -> None:
    path = await started(http)
    users = [f"user {i}" for i in range(30)]
    versions = {user: await version_for(http, user) for user in users}
    assert set(versions.values()) == {"m0@1", "m0@2"}
    assert {user: await version_for(http, user) for user in users} == versions
    state = (await http.get(path)).json()
    of_candidate = 2 * list(versions.values()).count("m0@2")
    assert (state["num_candidate"], state["num_stable"]) == (of_candidate, 60 - of_candidate)
    await http.post(f"{path}/abort")
    assert {await version_for(http, user) for user in users} == {"m0@1"}


async def test_a_pinned_request_gets_what_it_names_and_is_not_counted(
    http: httpx.AsyncClient,
) -> None:
    path = await started(http)
    for pin in ("m0@1", "2"):
        for i in range(5):
            answer = await ask(http, f"user {i}", **{"X-Headrace-Version": pin})
            assert answer.headers["X-Headrace-Version"].endswith(pin)
    state = (await http.get(path)).json()
    assert (state["num_candidate"], state["num_stable"]) == (0, 0)


async def test_a_faulty_candidate_is_sent_back_by_its_requests(http: httpx.AsyncClient) -> None:
    path = await started(http, stages=[99, 100])
    for i in range(25):
        await ask(http, f"user {i}", "bug")
    state = await until(lambda told: told["state"] != "running", http, path)
    assert state["state"] == "rolled_back"
    assert await version_for(http, "user 1") == "m0@1"


async def test_a_clients_mistake_is_nobodys_fault(http: httpx.AsyncClient) -> None:
    path = await started(http)
    for i in range(10):
        body = {"model": "m0", "prompt": "count 3", "user": f"{i}", "max_tokens": -1}
        assert (await http.post("/v1/completions", json=body)).status_code == 400
    state = (await http.get(path)).json()
    assert (state["num_candidate"], state["num_stable"]) == (0, 0)


async def test_what_a_client_does_not_wait_for_is_slow_and_no_failure(
    http: httpx.AsyncClient,
) -> None:
    path = await started(http, stages=[99, 100])
    for i in range(25):
        impatient = {"X-Request-Timeout": "0.02"}
        answer = await http.post("/v1/completions", json=endless(f"user {i}"), headers=impatient)
        assert answer.status_code == 504
    state = (await http.get(path)).json()
    assert state["state"] == "running"
    assert state["num_candidate"] == state["num_candidate_left"] > 20


async def test_a_request_whose_client_left_has_ended(http: httpx.AsyncClient) -> None:
    path = await started(http, stages=[99, 100])
    for i in range(3):
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/completions", json=endless(f"user {i}"), timeout=0.2)
    await until(lambda told: told["num_candidate_left"] + told["num_stable_left"] == 3, http, path)


async def test_a_rollout_and_an_experiment_do_not_share_a_model(http: httpx.AsyncClient) -> None:
    path = await started(http)
    variants = [{"model_id": "m0@1"}, {"model_id": "m0@2"}]
    body = {"name": "m0", "variants": variants, "metric": "success"}
    assert (await http.post("/api/v1/experiments", json=body)).status_code == 409
    await http.post(f"{path}/abort")
    answer = await http.post("/api/v1/experiments", json=body)
    assert answer.status_code == 201, answer.text
    other = {"name": "m0", "candidate": "m0@2", "guards": GUARDS}
    assert (await http.post("/api/v1/rollouts", json=other)).status_code == 409
    users = [f"user {i}" for i in range(30)]
    assert {await version_for(http, user) for user in users} == {"m0@1", "m0@2"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_mirrored_answer_is_compared_with_the_clients(
    http: httpx.AsyncClient,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    path = await started(http, stages=[0.001, 100], shadow_percent=100)
    body = {"model": "m0", "prompt": "count 3", "temperature": 0, "stream": stream}
    await http.post("/v1/completions", json=body)
    state = await until(lambda told: told["shadow"]["num_mirrored"] == 1, http, path)
    assert (state["shadow"]["num_greedy"], state["shadow"]["num_equal"]) == (1, 1)
    assert state["shadow"]["stable_tokens"] == state["shadow"]["candidate_tokens"] == 3
