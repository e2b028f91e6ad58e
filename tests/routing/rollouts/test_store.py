from collections.abc import Iterator

import pytest
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from headrace.routing.rollouts import store as store_module
from headrace.routing.rollouts.decision import Decision, Numbers
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.record import Record
from headrace.routing.rollouts.store import RolloutStore
from headrace.routing.stats.comparison import Verdict
from headrace.storage.tables import rollout_decisions, rollouts

SERVER = "127.0.0.1:8000"
PLAN = Plan(name="chat", candidate="chat@2", guards=Guards(max_latency_ratio=1.5))
NUMBERS = Numbers(
    verdict=Verdict.WORSE,
    limit=1.5,
    candidate=2.0,
    stable=1.0,
    excess=0.5,
    lowest_excess=0.1,
    highest_excess=None,
    num_candidate=60,
    num_stable=900,
)
STARTED = Decision(at=1.0, kind="started", stage_percent=5.0, reason="½")
BACK = Decision(
    at=2.5,
    kind="rolled_back",
    stage_percent=5.0,
    reason="over",
    numbers={"max_latency_ratio": NUMBERS},
)


def record(rollout_id: str = "r", **fields: object) -> Record:
    return Record(id=rollout_id, plan=PLAN, stable="chat@1", **{"created_at": 1.0, **fields})


@pytest.fixture
def store(database_url: str) -> Iterator[RolloutStore]:
    store = RolloutStore(database_url, SERVER)
    yield store
    store.close()


def test_a_rollout_comes_back_as_it_was_saved(store: RolloutStore, database_url: str) -> None:
    store.save(record(), [STARTED])
    over = record(state="rolled_back", ended_at=2.5)
    store.save(over, [BACK])
    store.close()
    again = RolloutStore(database_url, SERVER)
    assert again.read() == [(over, [STARTED, BACK])]
    again.close()


def test_the_oldest_is_first_and_decisions_are_each_ones_own(store: RolloutStore) -> None:
    store.save(record("new", created_at=9.0), [BACK])
    store.save(record("old"), [STARTED])
    assert [(each.id, decisions) for each, decisions in store.read()] == [
        ("old", [STARTED]),
        ("new", [BACK]),
    ]


def test_servers_that_share_a_database_see_their_own(
    store: RolloutStore, database_url: str
) -> None:
    other = RolloutStore(database_url, "127.0.0.1:8001")
    store.save(record(), [STARTED])
    other.save(record(stage=1), [BACK])
    assert store.read() == [(record(), [STARTED])]
    assert other.read() == [(record(stage=1), [BACK])]
    other.close()


def test_of_those_that_are_over_the_newest_are_kept_and_all_that_run(
    store: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_OVER", 2)
    store.save(record("runs", created_at=0.0), [STARTED])
    for number in range(4):
        store.save(record(f"{number}", state="aborted", created_at=float(number)), [STARTED])
    assert [each.id for each, _ in store.read()] == ["runs", "2", "3"]
    with store._engine.begin() as connection:
        left = connection.execute(select(func.count()).select_from(rollout_decisions))
        assert left.scalar() == 3


def test_what_cannot_be_read_is_left_out_and_kept(store: RolloutStore) -> None:
    store.save(record("newer"), [STARTED])
    store.save(record(), [STARTED, BACK])
    with store._engine.begin() as connection:
        of_a_newer_release = update(rollouts).values(record='{"id": "newer", "plan": 5}')
        connection.execute(of_a_newer_release.where(rollouts.c.id == "newer"))
        is_back = rollout_decisions.c.kind == "rolled_back"
        connection.execute(update(rollout_decisions).where(is_back).values(numbers='{"x": 1}'))
    with capture_logs() as lines:
        [(read, decisions)] = store.read()
    assert read == record()
    assert [decision.numbers for decision in decisions] == [{}, {}]
    assert {line["event"] for line in lines} == {
        "rollout.unreadable",
        "rollout.numbers_unreadable",
    }


def test_a_reason_may_hold_what_no_database_takes(store: RolloutStore) -> None:
    store.save(record(), [Decision(at=1.0, kind="aborted", stage_percent=5.0, reason="\0 \udcff")])
    [(_, [decision])] = store.read()
    assert decision.reason == "\ufffd ?"
