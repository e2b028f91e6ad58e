import json
from collections.abc import AsyncIterator

import httpx
import pytest

from api.scripted import ScriptedModel, ScriptedRegistry, info
from headrace.generation import Chunk, GenerationRequest, Timing


async def test_an_answer_has_text_usage_and_times(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/v1/generate", json={"prompt": "x", "model": "chat"})
    body = answer.json()
    assert answer.headers["x-headrace-version"] == "chat@1"
    assert body["request_id"] == answer.headers["x-request-id"]
    assert (body["model"], body["version"]) == ("chat", "1")
    assert body["text"] == "Water turns the wheel é!"
    assert body["finish_reason"] == "stop"
    assert body["usage"] == {"prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17}
    assert body["metrics"].pop("total_time_ms") > 0
    assert body["metrics"] == {
        "queue_time_ms": 1.0,
        "time_to_first_token_ms": 2.0,
        "generation_time_ms": 10.0,
        "tokens_per_second": 600.0,
        "batch_size": 3,
    }


async def as_an_upstream(
    _model: ScriptedModel, _request: GenerationRequest
) -> AsyncIterator[Chunk]:
    yield Chunk(0, "Water", [])
    yield Chunk(0, "", [], finish_reason="stop", timing=Timing(None, 0.002, 0.010, None))


async def test_what_an_upstream_does_not_tell_is_null(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.script = as_an_upstream
    body = (await http.post("/api/v1/generate", json={"prompt": "x"})).json()
    assert (body["text"], body["usage"]) == ("Water", None)
    assert body["metrics"].pop("total_time_ms") > 0
    assert body["metrics"] == {
        "queue_time_ms": None,
        "time_to_first_token_ms": 2.0,
        "generation_time_ms": 10.0,
        "tokens_per_second": None,
        "batch_size": None,
    }
    wanted = {"model": "chat", "prompt": "x", "stream": True}
    wanted["stream_options"] = {"include_usage": True}
    streamed = (await http.post("/v1/completions", json=wanted)).text
    assert streamed.endswith("data: [DONE]\n\n")
    assert '"choices":[]' not in streamed


async def test_the_documented_defaults_reach_the_engine(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    await http.post("/api/v1/generate", json={"prompt": "x"})
    sampling = model.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (256, 0.7, 0.9)


async def test_null_leaves_the_default(http: httpx.AsyncClient, model: ScriptedModel) -> None:
    nulls = {"max_tokens": None, "temperature": None, "top_p": None}
    answer = await http.post("/api/v1/generate", json={"prompt": "x", "model": "chat", **nulls})
    assert answer.status_code == 200
    sampling = model.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (256, 0.7, 0.9)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": 3},
        {"min_p": 0.1},
        {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"stop_token_ids": [1]},
        {"max_completion_tokens": 3},
        {"top_logprobs": 2},
        {"min_tokens": 1},
        {"ignore_eos": True},
        {"skip_special_tokens": False},
        {"return_token_ids": True},
        {"answered": [{"token_ids": [1]}]},
        {"tool_choice": "auto"},
        {"guided_regex": "a+"},
    ],
)
async def test_a_field_of_other_routes_is_refused_by_name(
    http: httpx.AsyncClient, fields: dict[str, object]
) -> None:
    answer = await http.post("/api/v1/generate", json={"prompt": "x", "model": "chat", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))


async def test_fields_of_other_routes_that_ask_for_nothing_are_taken(
    http: httpx.AsyncClient,
) -> None:
    nothing = {
        "logit_bias": {},
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "stop_token_ids": [],
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "ignore_eos": False,
        "top_logprobs": None,
    }
    answer = await http.post("/api/v1/generate", json={"prompt": "x", "model": "chat", **nothing})
    assert answer.status_code == 200


async def test_a_stream_ends_with_everything_but_the_text(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/v1/generate", json={"prompt": "x", "stream": True})
    *pieces, last = [
        json.loads(event.removeprefix("data: ")) for event in answer.text.strip().split("\n\n")
    ]
    assert "".join(piece["text"] for piece in pieces) == "Water turns the wheel é!"
    assert all(piece["finish_reason"] is None for piece in pieces)
    assert last["finish_reason"] == "stop"
    assert last["usage"]["total_tokens"] == 17
    assert last["metrics"]["batch_size"] == 3


async def test_a_model_must_be_named_when_several_are_served(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.models.append(ScriptedModel(info("other@1")))
    answer = await http.post("/api/v1/generate", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "chat, other" in answer.json()["error"]["message"]


async def test_without_any_model_the_answer_is_not_ready(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.models = []
    answer = await http.post("/api/v1/generate", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": "x", "max_tokens": 0}, "max_tokens")],
)
async def test_a_wrong_field_is_named(
    http: httpx.AsyncClient, fields: dict[str, object], param: str
) -> None:
    answer = await http.post("/api/v1/generate", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_batch_status_sums_the_engines(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.models.append(ScriptedModel(info("other@1")))
    status = (await http.get("/api/v1/batch/status")).json()
    assert status["free_blocks"] == status["blocks"] == 128
    assert [model["model"] for model in status["models"]] == ["chat", "other"]
    assert status["running"] == 0
