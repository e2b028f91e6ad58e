from collections.abc import Iterator
from itertools import pairwise

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import ConflictError
from headrace.routing.observation import Observation
from headrace.routing.rollouts.decision import OVER
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import INTERVAL, MAX_DECISIONS, Rollout
from headrace.routing.stats.comparison import Verdict

GUARDS = Guards(max_error_rate=0.2, max_latency_ratio=2.0)
PLAN = Plan(
    name="chat",
    candidate="chat@2",
    guards=GUARDS,
    stages=(20.0, 60.0, 100.0),
    stage_seconds=100.0,
    max_stage_seconds=200.0,
)


def begin(plan: Plan = PLAN) -> Rollout:
    return Rollout.begin("r", plan, "chat@1", 0.0)


def seen(user: str, *, failed: bool = False, latency: float = 1.0) -> Observation:
    return Observation(user=user, failed=failed, ttft=latency / 4, latency=latency, num_tokens=8)


def send(
    rollout: Rollout,
    count: int,
    *,
    failed: bool = False,
    latency: float = 1.0,
    before: str = "user",
) -> None:
    """Requests of so many users; what is said is the candidate's, the stable one is well."""
    for i in range(count):
        user = f"{before} {i}"
        candidate = rollout.takes(user)
        spread = 1 + (i % 7) / 100
        it = (
            seen(user, failed=failed, latency=latency * spread)
            if candidate
            else seen(user, latency=spread)
        )
        rollout.observe(it, candidate=candidate, stage=rollout.stage.number)


def kinds(rollout: Rollout) -> list[str]:
    return [decision.kind for decision in rollout.decisions]


# Users


def test_whoever_has_the_candidate_keeps_it_as_the_share_grows() -> None:
    rollout, now, before = begin(), 0.0, set[str]()
    for percent in PLAN.stages:
        having = {user for user in map(str, range(1000)) if rollout.takes(user)}
        assert before <= having
        assert abs(len(having) - percent * 10) < 50
        before = having
        send(rollout, 5000)
        now += 150.0
        rollout.evaluate(now)


def test_everybody_has_the_stable_version_when_it_was_sent_back() -> None:
    rollout = begin()
    rollout.candidate_failed(1.0, "chat@2 is failed")
    assert not any(rollout.takes(str(user)) for user in range(100))
    assert rollout.stage_percent == 0.0


def test_mirrored_requests_are_their_share_of_all() -> None:
    plan = Plan(name="chat", candidate="chat@2", guards=GUARDS, shadow_percent=10.0)
    rollout = begin(plan)
    assert 60 < sum(rollout.mirrors(str(i)) for i in range(1000)) < 140
    assert not any(begin().mirrors(str(i)) for i in range(1000))


# Stages


def test_a_candidate_that_is_well_passes_every_stage() -> None:
    rollout = begin()
    for number, now in enumerate((100.0, 200.0, 300.0)):
        send(rollout, 5000, before=str(number))
        assert rollout.evaluate(now - 1) is None
        rollout.evaluate(now + INTERVAL)
    assert kinds(rollout) == ["started", "advanced", "advanced", "passed"]
    assert [decision.stage_percent for decision in rollout.decisions] == [20, 60, 100, 100]
    assert (rollout.state, rollout.is_promoting) == ("running", True)
    rollout.promoted(311.0, "every stage is passed")
    assert (rollout.state, rollout.stage_percent, rollout.ended_at) == ("promoted", 100.0, 311.0)


def test_a_decision_has_the_numbers_that_made_it() -> None:
    rollout = begin()
    send(rollout, 5000)
    decision = rollout.evaluate(101.0)
    assert decision is not None
    rate, ratio = decision.numbers["max_error_rate"], decision.numbers["max_latency_ratio"]
    assert (rate.verdict, rate.limit, rate.candidate, rate.stable) == ("fine", 0.2, 0.0, None)
    assert rate.highest_excess is not None
    assert rate.highest_excess < 0
    assert (ratio.verdict, ratio.limit) == ("fine", 2.0)
    assert ratio.stable == pytest.approx(1.03, abs=0.01)
    assert ratio.num_candidate + ratio.num_stable == 5000


def test_a_candidate_that_is_slow_is_sent_back_at_the_next_look() -> None:
    rollout = begin()
    send(rollout, 5000, latency=3.0)
    assert rollout.evaluate(INTERVAL - 0.1) is None
    decision = rollout.evaluate(INTERVAL)
    assert decision is not None
    assert (decision.kind, decision.reason) == ("rolled_back", "over the limit: max_latency_ratio")
    assert decision.numbers["max_latency_ratio"].verdict is Verdict.WORSE
    assert (rollout.state, rollout.ended_at) == ("rolled_back", INTERVAL)


def test_a_candidate_that_fails_more_than_half_is_sent_back_without_waiting_for_a_look() -> None:
    rollout = begin()
    send(rollout, 150, failed=True)
    decision = rollout.evaluate(0.1)
    assert decision is not None
    assert decision.kind == "rolled_back"
    assert "more than half" in decision.reason


def test_too_little_traffic_keeps_a_stage_and_says_so() -> None:
    rollout = begin()
    send(rollout, 40)
    assert rollout.evaluate(110.0) is None
    had = sum(rollout.takes(f"user {i}") for i in range(40))
    assert rollout.waiting_for == [
        f"{had} of 20 users of the candidate",
        f"{had} of 500 requests of the candidate",
        f"{40 - had} of 50 requests of the stable version",
    ]
    decision = rollout.evaluate(210.0)
    assert decision is not None
    assert decision.kind == "stalled"
    assert "of 500 requests of the candidate" in decision.reason
    assert rollout.evaluate(1e6) is None
    assert (rollout.state, rollout.stage_percent) == ("running", 20.0)
    send(rollout, 5000)
    rollout.evaluate(1e6 + INTERVAL)
    assert (rollout.stage_percent, rollout.waiting_for) == (60.0, [])


def open_in(rollout: Rollout, *users: str) -> None:
    for _ in users:
        rollout.open(stage=rollout.stage.number)


def test_a_stage_waits_for_the_requests_that_have_not_ended() -> None:
    rollout = begin()
    open_in(rollout, "slow", "slower")
    send(rollout, 5000)
    assert rollout.evaluate(100.0) is None
    assert rollout.waiting_for == ["2 requests that have not ended"]
    assert rollout.stage.is_settling
    rollout.close(stage=0)
    assert rollout.evaluate(105.0) is None
    rollout.close(stage=0)
    decision = rollout.evaluate(110.0)
    assert decision is not None
    assert (decision.kind, rollout.stage.num_open, rollout.waiting_for) == ("advanced", 0, [])


def test_what_the_last_answers_show_sends_a_candidate_back() -> None:
    rollout = begin()
    hanging = [f"hanging {i}" for i in range(600)]
    open_in(rollout, *hanging)
    send(rollout, 5000)
    rollout.evaluate(100.0)
    for user in hanging:
        rollout.close(stage=0)
        rollout.observe(seen(user, latency=30.0), candidate=True, stage=0)
    decision = rollout.evaluate(110.0)
    assert decision is not None
    assert decision.reason == "over the limit: max_latency_ratio"


def test_a_stage_that_waits_counts_again_when_it_is_paused() -> None:
    rollout = begin()
    open_in(rollout, "slow")
    send(rollout, 5000)
    rollout.evaluate(100.0)
    rollout.pause(101.0, "by ada")
    assert not rollout.stage.is_settling


def test_a_failure_after_its_stage_is_over_counts_among_the_last_requests() -> None:
    rollout = begin()
    send(rollout, 5000)
    rollout.evaluate(110.0)
    assert rollout.stage.number == 1
    for i in range(20):
        late = seen(f"late {i}", failed=True)
        rollout.observe(late, candidate=True, stage=0, is_counted=False)
    decision = rollout.evaluate(110.1)
    assert decision is not None
    assert decision.kind == "rolled_back"


def test_what_was_assigned_in_another_stage_says_nothing_of_this() -> None:
    rollout = begin()
    send(rollout, 5000)
    rollout.evaluate(110.0)
    rollout.observe(seen("late", failed=True), candidate=True, stage=0)
    assert rollout.stage.watch.num_candidate == 0


def test_with_everybody_on_the_candidate_nothing_is_compared() -> None:
    plan = Plan(
        name="chat",
        candidate="chat@2",
        guards=Guards(max_latency_ratio=2.0),
        stages=(50.0, 100.0),
        stage_seconds=10.0,
    )
    rollout = begin(plan)
    send(rollout, 2000)
    rollout.evaluate(10.0)
    send(rollout, 49)
    assert rollout.evaluate(20.0) is None
    assert rollout.waiting_for == ["49 of 50 requests of the candidate"]
    send(rollout, 1)
    decision = rollout.evaluate(30.0)
    assert decision is not None
    assert (decision.kind, decision.numbers) == ("passed", {})


# What a person does


def test_a_pause_does_not_count_and_guards_go_on() -> None:
    rollout = begin()
    send(rollout, 5000)
    rollout.pause(50.0, "by ada")
    assert rollout.evaluate(1000.0) is None
    assert rollout.stage_percent == 20.0
    rollout.resume(1000.0, "by ada")
    assert rollout.evaluate(1049.0) is None
    assert rollout.stage.held_for(1049.0) == 99.0
    assert kinds(rollout) == ["started", "paused", "resumed"]
    rollout.pause(1049.5, "by ada")
    send(rollout, 5000, latency=4.0)
    rollout.evaluate(1060.0)
    assert rollout.state == "rolled_back"


def test_a_swap_that_was_refused_waits_for_somebody() -> None:
    rollout = begin()
    rollout.begin_promotion()
    with pytest.raises(ConflictError, match="promoted at this moment"):
        rollout.abort(1.0, "by ada")
    rollout.not_promoted(2.0, "chat@2 is unsafe")
    assert rollout.state == "paused"
    assert rollout.decisions[-1].reason == "the swap was refused: chat@2 is unsafe"
    rollout.resume(3.0, "by ada")
    rollout.abort(4.0, "by ada")
    assert kinds(rollout) == ["started", "paused", "resumed", "aborted"]


def test_a_swap_that_was_refused_leaves_no_more_users_than_were_compared() -> None:
    rollout = begin()
    for number in range(3):
        send(rollout, 5000, before=str(number))
        rollout.evaluate(110.0 * (number + 1))
    assert (rollout.stage_percent, rollout.is_promoting) == (100.0, True)
    rollout.not_promoted(400.0, "the server is shutting down")
    assert (rollout.state, rollout.stage_percent, rollout.stage.watch.num_stable) == (
        "paused",
        60.0,
        0,
    )
    rollout.resume(500.0, "by ada")
    send(rollout, 5000)
    rollout.evaluate(610.0)
    assert rollout.stage_percent == 100.0


def test_decisions_are_bounded_and_keep_the_first() -> None:
    rollout = begin()
    for i in range(MAX_DECISIONS):
        rollout.pause(float(i), "by ada")
        rollout.resume(float(i), "by ada")
    assert len(rollout.decisions) == MAX_DECISIONS
    assert rollout.decisions[0].kind == "started"
    assert rollout.decisions[-1].kind == "resumed"


# Another life


def test_a_restart_goes_on_at_its_stage_with_nothing_seen() -> None:
    rollout = begin()
    send(rollout, 5000)
    rollout.evaluate(110.0)
    send(rollout, 5000)
    again = Rollout.restore(rollout.record, rollout.decisions, 1000.0)
    assert (again.state, again.stage_percent, again.stage.watch.num_candidate) == ("running", 60, 0)
    assert kinds(again) == ["started", "advanced", "restarted"]
    assert [user for user in "abcdefgh" if again.takes(user)] == [
        user for user in "abcdefgh" if rollout.takes(user)
    ]
    assert again.evaluate(1099.0) is None
    send(again, 5000)
    again.evaluate(1105.0)
    assert again.stage_percent == 100.0


def test_one_that_was_paused_or_over_stays_so() -> None:
    rollout = begin()
    rollout.pause(10.0, "by ada")
    again = Rollout.restore(rollout.record, rollout.decisions, 1000.0)
    assert (again.state, again.stage.held_for(2000.0)) == ("paused", 0.0)
    again.abort(2000.0, "by ada")
    over = Rollout.restore(again.record, again.decisions, 3000.0)
    assert (over.state, over.ended_at, kinds(over)[-1]) == ("aborted", 2000.0, "aborted")
    assert over.unsaved == []


# Any order of calls


def calls(rollout: Rollout) -> Iterator[str]:
    """What may be done in this state."""
    if rollout.is_over or rollout.is_promoting:
        return
    yield from ("abort", "begin_promotion")
    yield "pause" if rollout.state == "running" else "resume"


class AnyOrder(RuleBasedStateMachine):
    """Whatever is done in whatever order, users keep what they have and ends are ends."""

    def __init__(self) -> None:
        super().__init__()
        self.rollout = begin()
        self.now = 0.0
        self.having: set[str] = set()
        self.ended: str | None = None

    @rule(seconds=st.floats(0, 300))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(count=st.sampled_from([10, 1500]), latency=st.sampled_from([1.0, 1.1, 3.0]))
    def send(self, count: int, latency: float) -> None:
        send(self.rollout, count, latency=latency)

    @rule()
    def evaluate(self) -> None:
        before = len(self.rollout.decisions)
        decision = self.rollout.evaluate(self.now)
        assert len(self.rollout.decisions) == before + (decision is not None)

    @rule(what=st.sampled_from(["pause", "resume", "abort"]))
    def do(self, what: str) -> None:
        act = {
            "pause": self.rollout.pause,
            "resume": self.rollout.resume,
            "abort": self.rollout.abort,
        }[what]
        if what in calls(self.rollout):
            act(self.now, "by ada")
            return
        before = self.rollout.record, self.rollout.decisions
        with pytest.raises(ConflictError):
            act(self.now, "by ada")
        assert (self.rollout.record, self.rollout.decisions) == before

    @precondition(lambda self: "begin_promotion" in calls(self.rollout))
    @rule()
    def begin_promotion(self) -> None:
        self.rollout.begin_promotion()

    @precondition(lambda self: self.rollout.is_promoting)
    @rule(is_refused=st.booleans())
    def swap(self, is_refused: bool) -> None:  # noqa: FBT001 - what hypothesis gives
        if is_refused:
            self.rollout.not_promoted(self.now, "unsafe")
            self.having = set()  # at the last stage it goes one back
        else:
            self.rollout.promoted(self.now, "by ada")

    @precondition(lambda self: not (self.rollout.is_over or self.rollout.is_promoting))
    @rule()
    def restart(self) -> None:
        again = Rollout.restore(self.rollout.record, self.rollout.decisions, self.now)
        assert again.record == self.rollout.record
        self.rollout = again

    @invariant()
    def users_keep_what_they_have(self) -> None:
        having = {user for user in map(str, range(50)) if self.rollout.takes(user)}
        assert self.having <= having or self.rollout.is_over
        self.having = having

    @invariant()
    def an_end_is_an_end(self) -> None:
        assert self.rollout.is_over == (self.rollout.ended_at is not None)
        assert self.rollout.is_over == (kinds(self.rollout)[-1] in OVER)
        if self.ended is not None:
            assert self.rollout.state == self.ended
        self.ended = self.rollout.state if self.rollout.is_over else None

    @invariant()
    def decisions_are_in_order(self) -> None:
        times = [decision.at for decision in self.rollout.decisions]
        assert all(a <= b for a, b in pairwise(times))
        assert self.rollout.stage_percent in {0.0, *PLAN.stages}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis.settings(max_examples=25, stateful_step_count=25, deadline=None)
