import pytest

from headrace.errors import ConflictError, InvalidRequestError, RolloutNotFoundError
from headrace.routing.observation import Observation
from headrace.routing.rollouts import rollouts as rollouts_module
from headrace.routing.rollouts.choice import Choice
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import Rollout
from headrace.routing.rollouts.rollouts import Condition, Rollouts

SEEN = Observation(user="ada", failed=False, ttft=0.1, latency=1.0, num_tokens=5)


class Known:
    """Versions as a test says that they are."""

    def __init__(self) -> None:
        self.pointers = {"chat": "chat@1"}
        self.conditions = {"chat@1": Condition("answering"), "chat@2": Condition("answering")}

    def active(self, name: str) -> str | None:
        return self.pointers.get(name)

    def condition(self, model_id: str) -> Condition:
        return self.conditions.get(model_id, Condition("gone", "is not loaded"))


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def rollouts(known: Known) -> Rollouts:
    return Rollouts(known)


def plan(candidate: str = "chat@2", shadow_percent: float = 0.0) -> Plan:
    return Plan(
        name=candidate.partition("@")[0],
        candidate=candidate,
        guards=Guards(max_error_rate=0.1),
        stages=(50.0, 100.0),
        shadow_percent=shadow_percent,
    )


def choices(rollouts: Rollouts, count: int = 200) -> list[Choice | None]:
    return [rollouts.choose("chat", f"user {i}", f"request {i}") for i in range(count)]


def test_users_are_shared_out_while_a_rollout_runs(rollouts: Rollouts) -> None:
    assert rollouts.choose("chat", "ada", "1") is None
    rollout = rollouts.start(plan(), 0.0)
    chosen = [choice.model for choice in choices(rollouts) if choice]
    assert len(chosen) == 200
    assert 70 < chosen.count("chat@2") < 130
    assert chosen.count("chat") == 200 - chosen.count("chat@2")
    assert rollouts.choose("vision", "ada", "1") is None
    rollout.abort(1.0, "by ada")
    assert choices(rollouts, 3) == [None] * 3


def test_a_user_has_one_version_whatever_is_asked(rollouts: Rollouts) -> None:
    rollouts.start(plan(), 0.0)
    named = {rollouts.choose("chat", "ada", str(i)) for i in range(50)}
    unnamed = {choice.model for i in range(50) if (choice := rollouts.choose("chat", None, str(i)))}
    assert len(named) == 1
    assert unnamed == {"chat", "chat@2"}


def test_only_requests_of_the_stable_version_are_mirrored(rollouts: Rollouts) -> None:
    rollouts.start(plan(shadow_percent=100.0), 0.0)
    for choice in choices(rollouts):
        assert choice is not None
        assert choice.shadow == (None if choice.is_candidate else "chat@2")


def test_only_what_the_meant_version_answered_is_counted(rollouts: Rollouts) -> None:
    rollout = rollouts.start(plan(), 0.0)
    of_candidate = Choice(rollout.id, "chat@2", is_candidate=True, stage=0)
    of_stable = Choice(rollout.id, "chat", is_candidate=False, stage=0)
    for choice in (of_candidate, of_stable, of_stable, of_stable):
        rollouts.begin(choice)
    rollouts.end(of_candidate, "chat@2", SEEN)
    rollouts.end(of_stable, "chat@1", SEEN)
    rollouts.end(of_stable, "chat@3", SEEN)
    rollouts.end(of_stable, "chat", SEEN)
    rollouts.end(Choice("other", "chat", is_candidate=False, stage=0), "chat@1", SEEN)
    assert (rollout.stage.watch.num_candidate, rollout.stage.watch.num_stable) == (1, 2)
    assert rollout.stage.num_open == 0


def test_a_request_that_says_nothing_has_ended_all_the_same(rollouts: Rollouts) -> None:
    rollout = rollouts.start(plan(), 0.0)
    of_candidate = Choice(rollout.id, "chat@2", is_candidate=True, stage=0)
    rollouts.begin(of_candidate)
    assert rollout.stage.num_open == 1
    rollouts.end(of_candidate, "chat@2", None)
    assert (rollout.stage.num_open, rollout.stage.watch.num_candidate) == (0, 0)


def test_what_comes_while_a_stage_waits_for_others_is_not_counted(rollouts: Rollouts) -> None:
    rollout = rollouts.start(plan(), 0.0)
    rollout.stage.is_settling = True
    for choice in choices(rollouts):
        assert choice is not None
        rollouts.begin(choice)
        assert rollout.stage.num_open == 0
        rollouts.end(choice, choice.model, SEEN)
    assert (rollout.stage.num_open, rollout.stage.watch.num_candidate) == (0, 0)


# What ends one


def test_a_candidate_that_fails_gets_no_more_requests_and_is_sent_back(
    rollouts: Rollouts, known: Known
) -> None:
    rollout = rollouts.start(plan(), 0.0)
    known.conditions["chat@2"] = Condition("failed", "is failed: out of memory")
    assert choices(rollouts, 20) == [None] * 20
    assert rollouts.evaluate(0.1) == [rollout]
    assert (rollout.state, rollout.decisions[-1].reason) == (
        "rolled_back",
        "chat@2 is failed: out of memory",
    )
    assert rollouts.evaluate(0.2) == []


def test_a_candidate_that_loads_after_a_restart_is_waited_for(
    rollouts: Rollouts, known: Known
) -> None:
    left = Rollout.begin("r", plan(), "chat@1", 0.0)
    known.pointers, known.conditions["chat@2"] = {}, Condition("coming", "is loading")
    rollouts.restore([(left.record, left.decisions)], 100.0)
    assert rollouts.evaluate(200.0) == []
    assert choices(rollouts, 3) == [None] * 3
    known.pointers, known.conditions["chat@2"] = {"chat": "chat@1"}, Condition("answering")
    assert any(choice and choice.is_candidate for choice in choices(rollouts))
    assert rollouts.find("r").state == "running"


@pytest.mark.parametrize(
    ("active", "condition", "state", "reason"),
    [
        ("chat@2", "answering", "promoted", "it was made active by hand"),
        ("chat@3", "answering", "aborted", "chat@3 was made active by hand"),
        ("chat@1", "gone", "aborted", "chat@2 is not loaded"),
        (None, "gone", "aborted", "chat@2 is not loaded"),
    ],
)
def test_a_change_by_hand_ends_it(  # noqa: PLR0917 - a table's columns
    rollouts: Rollouts,
    known: Known,
    active: str | None,
    condition: str,
    state: str,
    reason: str,
) -> None:
    rollout = rollouts.start(plan(), 0.0)
    known.pointers = {"chat": active} if active else {}
    if condition == "gone":
        del known.conditions["chat@2"]
    assert rollouts.evaluate(0.1) == [rollout]
    assert (rollout.state, rollout.decisions[-1].reason) == (state, reason)


def test_a_swap_that_is_under_way_is_no_change_by_hand(rollouts: Rollouts, known: Known) -> None:
    rollout = rollouts.start(plan(), 0.0)
    rollout.begin_promotion()
    known.pointers["chat"] = "chat@2"
    assert rollouts.evaluate(10.0) == []
    rollout.promoted(11.0, "by ada")
    assert rollout.state == "promoted"


# What cannot begin


@pytest.mark.parametrize(
    ("candidate", "field", "sentence"),
    [
        ("chat@1", "candidate", "chat@1 is active already"),
        ("chat@9", "candidate", "chat@9 is not loaded"),
        ("chat@3", "candidate", "chat@3 is loading"),
        ("other@1", "name", "no model 'other' is served"),
    ],
)
def test_a_version_that_will_not_do_is_refused(
    rollouts: Rollouts, known: Known, candidate: str, field: str, sentence: str
) -> None:
    known.conditions["chat@3"] = Condition("coming", "is loading")
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        rollouts.start(plan(candidate), 0.0)
    assert caught.value.param == field
    assert list(rollouts) == []


def test_of_a_model_only_one_runs(rollouts: Rollouts) -> None:
    first = rollouts.start(plan(), 0.0)
    with pytest.raises(ConflictError, match=f"chat: rollout {first.id} shares out its requests"):
        rollouts.start(plan(), 1.0)
    first.abort(2.0, "by ada")
    second = rollouts.start(plan(), 3.0)
    assert [each.id for each in rollouts] == [second.id, first.id]
    rollouts.withdraw(second)
    assert rollouts.occupant("chat") is None


def test_none_begins_where_something_else_shares_out_requests(known: Known) -> None:
    rollouts = Rollouts(known, occupied=lambda name: f"experiment of {name}")
    with pytest.raises(ConflictError, match="chat: experiment of chat shares out"):
        rollouts.start(plan(), 0.0)


def test_an_unknown_id_is_no_rollout(rollouts: Rollouts) -> None:
    with pytest.raises(RolloutNotFoundError, match="there is no rollout 'x'"):
        rollouts.find("x")


def test_of_those_that_are_over_the_newest_are_told_of(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts_module, "MAX_OVER", 2)
    ids = []
    for now in range(5):
        rollout = rollouts.start(plan(), float(now))
        rollout.abort(float(now), "by ada")
        ids.append(rollout.id)
    running = rollouts.start(plan(), 9.0)
    assert [each.id for each in rollouts] == [running.id, ids[4], ids[3]]
