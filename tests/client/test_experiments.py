from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headrace.client import Client
from headrace.errors import ConflictError
from headrace.routing.experiments.experiment import Conclusion, Experiment
from headrace.routing.experiments.plan import Plan, Variant
from headrace.routing.experiments.reading import read
from headrace.routing.experiments.state import ExperimentState
from models_server import ModelsServer, refusal

PATH = "/api/v1/experiments"
VARIANTS = {"chat@1": 9.0, "chat@2": 1.0}


@pytest.fixture
def client(server: ModelsServer) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def state(*, is_over: bool = False) -> ExperimentState:
    variants = tuple(Variant(model_id, weight) for model_id, weight in VARIANTS.items())
    plan = Plan(name="chat", variants=variants, metric="latency")
    experiment = Experiment("exp-1", plan, 1.7e9)
    reading = read(plan, list(experiment.samples.values()))
    if is_over:
        experiment.conclude(Conclusion(promoted="chat@2", by="ann", at=1.8e9, reading=reading))
    return experiment.state(reading)


def told(value: Any) -> bytes:
    return msgspec.json.encode(value)


def test_what_the_server_tells_is_understood(server: ModelsServer, client: Client) -> None:
    server.answers[f"GET {PATH}/exp-1"] = (200, told(state()))
    server.answers[f"GET {PATH}"] = (200, told({"experiments": [state(), state(is_over=True)]}))
    assert client.experiments.get("exp-1") == state()
    assert client.experiments.list() == (state(), state(is_over=True))


def test_an_experiment_says_only_what_was_said(server: ModelsServer, client: Client) -> None:
    server.answers[f"POST {PATH}"] = (201, told(state()))
    assert client.experiments.create("chat", VARIANTS, "latency") == state()
    client.experiments.create(
        "chat", VARIANTS, "success", alpha=0.01, min_samples=9, promote_winner=True
    )
    said = {
        "name": "chat",
        "variants": [
            {"model_id": "chat@1", "weight": 9.0},
            {"model_id": "chat@2", "weight": 1.0},
        ],
    }
    assert [body for _, body in server.requests] == [
        {**said, "metric": "latency", "promote_winner": False},
        {**said, "metric": "success", "promote_winner": True, "alpha": 0.01, "min_samples": 9},
    ]


def test_the_winner_may_be_named_or_left_to_the_server(
    server: ModelsServer, client: Client
) -> None:
    server.answers[f"POST {PATH}/exp-1/conclude"] = (200, told(state(is_over=True)))
    server.answers[f"POST {PATH}/exp-2/conclude"] = (409, refusal("conflict", "none yet"))
    assert client.experiments.conclude("exp-1").promoted == "chat@2"
    client.experiments.conclude("exp-1", "chat@1")
    assert [body for _, body in server.requests] == [{}, {"winner": "chat@1"}]
    with pytest.raises(ConflictError, match="none yet"):
        client.experiments.conclude("exp-2")


def test_feedback_names_its_request(server: ModelsServer, client: Client) -> None:
    server.answers["POST /api/v1/feedback"] = (200, {"request_id": "r1", "score": 0.5})
    client.experiments.feedback("r1", 0.5)
    assert server.requests == [("POST /api/v1/feedback", {"request_id": "r1", "score": 0.5})]
