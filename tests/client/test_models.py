from collections.abc import Iterator

import pytest

from headrace.client import Client, Endpoint, SafetyReport, UnreachableError, UnsafeSwapError
from headrace.errors import ConflictError, InvalidRequestError, ModelNotFoundError
from models_server import ModelsServer, endpoint, event, loading, model, refusal, report


@pytest.fixture
def client(server: ModelsServer) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def test_versions_are_listed_as_values(server: ModelsServer, client: Client) -> None:
    server.answers["GET /api/v1/models"] = (
        200,
        {"models": [model("chat@1", active=True, state="active"), loading("chat@2")]},
    )
    first, second = client.models.list()
    assert (first.model_id, first.active, first.executor) == ("chat@1", True, "native-avx2")
    assert (second.state, second.progress, second.health_score) == ("loading", 0.5, None)


def test_a_field_that_a_newer_server_adds_is_passed_over(
    server: ModelsServer, client: Client
) -> None:
    server.answers["GET /api/v1/models/chat"] = (200, model("chat@3") | {"colour": "blue"})
    assert client.models.get("chat").version == 3


def test_a_name_with_a_slash_stays_one_part_of_the_path(
    server: ModelsServer, client: Client
) -> None:
    server.answers["GET /api/v1/models/a%2Fb@1"] = (404, refusal("model_not_found", "no a/b@1"))
    with pytest.raises(ModelNotFoundError, match="no a/b@1"):
        client.models.get("a/b@1")


def test_bytes_that_are_no_text_reach_the_server_as_they_are(
    server: ModelsServer, client: Client
) -> None:
    server.answers["POST /api/v1/models/%FF/unload"] = (404, refusal("model_not_found", "none"))
    server.answers["GET /api/v1/models/history?name=%FF"] = (200, {"changes": []})
    with pytest.raises(ModelNotFoundError):
        client.models.unload("\udcff")
    assert client.models.history("\udcff") == ()


def test_a_load_says_only_what_was_said(server: ModelsServer, client: Client) -> None:
    server.answers["POST /api/v1/models/load"] = (202, {"model_id": "chat@2", "state": "loading"})
    client.models.load("chat", "smollm2")
    accepted = client.models.load(
        "chat", "smollm2", version=2, engine={"max_num_seqs": 4}, retain="cold", replicas=None
    )
    assert (accepted.model_id, accepted.state) == ("chat@2", "loading")
    assert [body for _, body in server.requests] == [
        {"name": "chat", "source": "smollm2"},
        {
            "name": "chat",
            "source": "smollm2",
            "version": 2,
            "engine": {"max_num_seqs": 4},
            "retain": "cold",
        },
    ]


def test_a_load_without_a_source_says_its_upstreams(server: ModelsServer, client: Client) -> None:
    server.answers["POST /api/v1/models/load"] = (202, {"model_id": "chat@1", "state": "loading"})
    client.models.load("chat", upstreams=[{"url": "http://gpu/v1"}], routing={"migration": "off"})
    assert server.requests[0][1] == {
        "name": "chat",
        "upstreams": [{"url": "http://gpu/v1"}],
        "routing": {"migration": "off"},
    }


def test_endpoints_are_read_where_a_server_tells_of_them(
    server: ModelsServer, client: Client
) -> None:
    told = endpoint("gpu-1", breaker="open", taking=False)
    versions = [model("chat@1", endpoints=[told]), model("chat@2")]
    server.answers["GET /api/v1/models"] = (200, {"models": versions})
    first, second = client.models.list()
    assert (first.endpoints, second.endpoints) == ((Endpoint(**told),), ())


def test_a_watch_gives_versions_until_the_server_ends_it(
    server: ModelsServer, client: Client
) -> None:
    news = event({"any": "thing"}, name="of_a_newer_server")
    server.streams.append([loading(), ": \n\n", news, model(reason="U+2028 \u2028 is no line end")])
    with client.models.watch() as models:
        seen = list(models)
    assert [each.state for each in seen] == ["loading", "ready"]
    assert seen[1].reason == "U+2028 \u2028 is no line end"


def test_an_unsafe_swap_carries_its_report(server: ModelsServer, client: Client) -> None:
    body = refusal("unsafe_swap", "health_score", safety=report(safe=False))
    server.answers["POST /api/v1/models/swap"] = (400, body)
    with pytest.raises(UnsafeSwapError, match=r"chat@2 .* health_score \(0.50, low\)") as caught:
        client.models.swap("chat@2")
    assert [check.passed for check in caught.value.report.checks] == [False, True]


def test_another_refused_swap_is_the_error_it_was(server: ModelsServer, client: Client) -> None:
    server.answers["POST /api/v1/models/swap"] = (409, refusal("conflict", "a load runs"))
    with pytest.raises(ConflictError, match="a load runs"):
        client.models.swap("chat@2")
    server.answers["POST /api/v1/models/swap"] = (400, refusal("invalid_value", "mode"))
    with pytest.raises(InvalidRequestError, match="mode"):
        client.models.swap("chat@2")


def test_swap_and_rollback_say_what_answers_now(server: ModelsServer, client: Client) -> None:
    answer = {"previous": "chat@1", "active": "chat@2", "duration_ms": 1.5}
    server.answers["POST /api/v1/models/swap"] = (200, answer)
    server.answers["POST /api/v1/models/rollback"] = (200, answer | {"previous": None})
    swap = client.models.swap("chat@2", mode="queue", source="smollm2", engine={"executor": "auto"})
    assert (swap.previous, swap.active, swap.duration_ms) == ("chat@1", "chat@2", 1.5)
    assert client.models.rollback("chat").previous is None
    assert [body for _, body in server.requests] == [
        {
            "model_id": "chat@2",
            "mode": "queue",
            "source": "smollm2",
            "engine": {"executor": "auto"},
        },
        {"name": "chat"},
    ]


def test_safety_unload_and_history_are_read(server: ModelsServer, client: Client) -> None:
    change = {
        "kind": "swap",
        "name": "chat",
        "previous": "chat@1",
        "active": "chat@2",
        "who": "http 127.0.0.1",
        "started_at": 1.0,
        "ended_at": None,
        "outcome": "running",
        "detail": None,
    }
    server.answers |= {
        "GET /api/v1/models/chat@2/swap/safety": (200, report(safe=True)),
        "POST /api/v1/models/chat/unload": (
            202,
            {"models": [{"model_id": "chat@1", "state": "unloading"}]},
        ),
        "GET /api/v1/models/history?": (200, {"changes": []}),
        "GET /api/v1/models/history?name=chat&limit=3": (200, {"changes": [change]}),
    }
    safety = client.models.safety("chat@2")
    assert isinstance(safety, SafetyReport)
    assert safety.safe
    assert [each.model_id for each in client.models.unload("chat")] == ["chat@1"]
    assert client.models.history() == ()
    (last,) = client.models.history("chat", limit=3)
    assert (last.outcome, last.ended_at) == ("running", None)


def test_json_of_another_kind_is_no_answer(server: ModelsServer, client: Client) -> None:
    server.answers["GET /api/v1/models"] = (200, {"data": []})
    with pytest.raises(UnreachableError, match="not the answer of a Headrace server"):
        client.models.list()
