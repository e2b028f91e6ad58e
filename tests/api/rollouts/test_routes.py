from typing import Any

import httpx
import pytest

from scripted_serving import Served

PATH = "/api/v1/rollouts"
UNKNOWN = "0" * 32


def asked(**fields: Any) -> dict[str, Any]:
    known = {"name": "m0", "candidate": "m0@2", "guards": {"max_error_rate": 0.1}}
    return {**known, **fields}


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def started(http: httpx.AsyncClient, **fields: Any) -> str:
    answer = await http.post(PATH, json=asked(**fields))
    assert answer.status_code == 202, answer.text
    return answer.json()["rollout_id"]


async def test_a_rollout_is_started_and_told_of(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json=asked(shadow_percent=5))
    assert answer.status_code == 202
    told = answer.json()
    assert (told["name"], told["stable"], told["candidate"]) == ("m0", "m0@1", "m0@2")
    assert (told["state"], told["stage_percent"]) == ("running", 5.0)
    assert (told["stages"], told["stage_seconds"]) == ([5.0, 10.0, 25.0, 50.0, 100.0], 300.0)
    assert told["guards"] == {"max_error_rate": 0.1}
    assert told["numbers"]["max_error_rate"]["verdict"] == "unknown"
    assert told["shadow"]["num_mirrored"] == 0
    [decision] = told["decisions"]
    assert (decision["kind"], decision["reason"]) == ("started", "m0@2 beside m0@1")
    again = (await http.get(f"{PATH}/{told['rollout_id']}")).json()
    assert again["decisions"] == told["decisions"]
    [listed] = (await http.get(PATH)).json()["rollouts"]
    assert (listed["rollout_id"], listed["state"]) == (told["rollout_id"], "running")


async def test_it_is_paused_resumed_and_aborted(http: httpx.AsyncClient) -> None:
    rollout_id = await started(http)
    states = []
    for act in ("pause", "resume", "abort"):
        answer = await http.post(f"{PATH}/{rollout_id}/{act}")
        assert answer.status_code == 200, answer.text
        states.append(answer.json()["state"])
    assert states == ["paused", "running", "aborted"]
    assert error_of(await http.post(f"{PATH}/{rollout_id}/resume"))[:2] == (409, "conflict")
    told = (await http.get(f"{PATH}/{rollout_id}")).json()
    assert told["decisions"][-1]["reason"] == "by http 127.0.0.1"
    assert (told["stage_percent"], told["ended_at"]) == (0.0, told["decisions"][-1]["at"])


async def test_it_is_promoted_through_a_swap(http: httpx.AsyncClient, served: Served) -> None:
    rollout_id = await started(http)
    answer = await http.post(f"{PATH}/{rollout_id}/promote")
    assert (answer.status_code, answer.json()["state"]) == (200, "promoted")
    assert served.registry.status("m0").model_id == "m0@2"


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"name": "m9", "candidate": "m9@1"}, (400, "invalid_value", "name")),
        ({"candidate": "m0@9"}, (400, "invalid_value", "candidate")),
        ({"candidate": "m0@1"}, (400, "invalid_value", "candidate")),
        ({"candidate": "other@2"}, (400, "invalid_value", "candidate")),
        ({"guards": {}}, (400, "invalid_value", "guards")),
        ({"guards": {"max_latency": 2}}, (400, "invalid_value", "guards.max_latency")),
        ({"guards": {"max_error_rate": -1}}, (400, "invalid_value", "guards.max_error_rate")),
        ({"guards": {"max_ttft_ratio": 1}}, (400, "invalid_value", "guards.max_ttft_ratio")),
        ({"stages": []}, (400, "invalid_value", "stages")),
        ({"stages": [50, 20]}, (400, "invalid_value", "stages.1")),
        ({"stages": [100]}, (400, "invalid_value", "stages.0")),
        ({"stages": [1, 2000]}, (400, "invalid_value", "stages.1")),
        ({"stages": ["5"]}, (400, "invalid_value", "stages.0")),
        ({"stage_seconds": -1}, (400, "invalid_value", "stage_seconds")),
        ({"max_stage_seconds": 1}, (400, "invalid_value", "max_stage_seconds")),
        ({"shadow_percent": 200}, (400, "invalid_value", "shadow_percent")),
        ({"guard": 1}, (400, "invalid_value", "guard")),
    ],
)
async def test_what_makes_no_sense_names_its_field(
    http: httpx.AsyncClient, fields: dict[str, Any], refused: tuple[int, str, str]
) -> None:
    assert error_of(await http.post(PATH, json=asked(**fields))) == refused
    assert (await http.get(PATH)).json() == {"rollouts": []}


async def test_a_second_one_of_a_model_is_a_conflict(http: httpx.AsyncClient) -> None:
    await started(http)
    assert error_of(await http.post(PATH, json=asked())) == (409, "conflict", "name")


async def test_an_unknown_id_is_not_found(http: httpx.AsyncClient) -> None:
    assert error_of(await http.get(f"{PATH}/{UNKNOWN}"))[:2] == (404, "rollout_not_found")
    for act in ("promote", "pause", "resume", "abort"):
        answer = await http.post(f"{PATH}/{UNKNOWN}/{act}")
        assert error_of(answer)[:2] == (404, "rollout_not_found")


async def test_pages_of_other_sites_change_nothing(http: httpx.AsyncClient) -> None:
    rollout_id = await started(http)
    foreign = {"Origin": "https://evil.example"}
    answer = await http.post(f"{PATH}/{rollout_id}/abort", headers=foreign)
    assert error_of(answer)[:2] == (403, "foreign_origin")
    refused = await http.post(PATH, json=asked(), headers=foreign)
    assert error_of(refused)[:2] == (403, "foreign_origin")
    local = {"Origin": "http://127.0.0.1:9"}
    answer = await http.post(f"{PATH}/{rollout_id}/abort", headers=local)
    assert error_of(answer)[:2] == (400, "invalid_value")
    assert (await http.get(f"{PATH}/{rollout_id}")).json()["state"] == "running"
