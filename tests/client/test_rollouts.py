from collections.abc import Iterator

import pytest

from headrace.client import Client
from headrace.errors import ConflictError
from models_server import ModelsServer, refusal
from rollout_states import BEGAN, listed, rollout, told, used

PATH = "/api/v1/rollouts"


@pytest.fixture
def client(server: ModelsServer) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def test_what_the_server_tells_is_understood(server: ModelsServer, client: Client) -> None:
    server.answers[f"GET {PATH}/r1"] = (200, told(used(rollout()), 42.0))
    read = client.rollouts.get("r1")
    assert (read.rollout_id, read.stable, read.candidate) == ("r1", "chat@1", "chat@2")
    assert (read.state, read.is_over, read.stage_percent) == ("running", False, 5.0)
    assert (read.held_seconds, read.num_candidate, read.num_stable) == (42.0, 100, 100)
    assert read.guards == {"max_error_rate": 0.02, "max_latency_ratio": 1.2}
    assert set(read.numbers) == set(read.guards)
    assert read.numbers["max_error_rate"].candidate == pytest.approx(0.1)
    assert [(each.kind, each.at) for each in read.decisions] == [("started", BEGAN)]
    assert read.shadow is not None
    assert read.shadow.num_mirrored == 0


def test_a_list_is_of_summaries(server: ModelsServer, client: Client) -> None:
    ended = rollout("r1")
    ended.abort(BEGAN + 1, "by ann")
    server.answers[f"GET {PATH}"] = (200, listed(rollout("r2"), ended))
    newest, oldest = client.rollouts.list()
    assert (newest.rollout_id, newest.is_over) == ("r2", False)
    assert (oldest.state, oldest.is_over) == ("aborted", True)


def test_a_start_says_only_what_was_said(server: ModelsServer, client: Client) -> None:
    server.answers[f"POST {PATH}"] = (202, told(rollout()))
    client.rollouts.start("chat", "chat@2", guards={"max_error_rate": 0.02}, stages=None)
    client.rollouts.start("chat", "chat@2", guards={}, stages=[5, 100], shadow_percent=1.0)
    assert [body for _, body in server.requests] == [
        {"name": "chat", "candidate": "chat@2", "guards": {"max_error_rate": 0.02}},
        {
            "name": "chat",
            "candidate": "chat@2",
            "guards": {},
            "stages": [5, 100],
            "shadow_percent": 1.0,
        },
    ]


@pytest.mark.parametrize("operation", ["promote", "pause", "resume", "abort"])
def test_each_operation_has_a_route(server: ModelsServer, client: Client, operation: str) -> None:
    server.answers[f"POST {PATH}/r1/{operation}"] = (200, told(rollout()))
    server.answers[f"POST {PATH}/a%2Fb/{operation}"] = (409, refusal("conflict", "it is over"))
    act = getattr(client.rollouts, operation)
    assert act("r1").rollout_id == "r1"
    with pytest.raises(ConflictError, match="it is over"):
        act("a/b")
