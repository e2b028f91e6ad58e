"""Candidates of which some requests hang, in stages that are shorter than these take."""

import heapq
import random

import pytest

from headrace.routing.observation import Observation
from headrace.routing.rollouts.choice import Choice
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import Rollout
from headrace.routing.rollouts.rollouts import Condition, Rollouts

PER_SECOND = 100
SECONDS = 200


class Answering:
    def active(self, _name: str) -> str:
        return "chat@1"

    def condition(self, _model_id: str) -> Condition:
        return Condition("answering")


def run(guards: Guards, hanging: float, *, patience: float, failed: bool) -> Rollout:
    """Requests take 0.1 s; those of the candidate that hang end when somebody's patience does."""
    plan = Plan(
        name="chat", candidate="chat@2", guards=guards, stages=(20.0, 50.0, 100.0), stage_seconds=5
    )
    rng, rollouts = random.Random(1), Rollouts(Answering())
    rollout = rollouts.start(plan, 0.0)
    ends: list[tuple[float, int, Choice, Observation]] = []
    for i in range(SECONDS * PER_SECOND):
        now = i / PER_SECOND
        while ends and ends[0][0] <= now:
            _, _, ended, seen = heapq.heappop(ends)
            rollouts.end(ended, ended.model, seen)
        if i % PER_SECOND == 0:
            rollouts.evaluate(now)
        if rollout.is_over or rollout.is_promoting:
            break
        choice = rollouts.choose("chat", f"user {i % 5000}", f"{i}")
        assert choice is not None
        hangs = choice.is_candidate and rng.random() < hanging
        latency = patience if hangs else 0.1 * rng.lognormvariate(0, 0.3)
        rollouts.begin(choice)
        seen = Observation(
            user=f"user {i % 5000}",
            failed=hangs and failed,
            ttft=None if hangs else latency / 2,
            latency=latency,
            num_tokens=None,
            is_cut_off=hangs,
        )
        heapq.heappush(ends, (now + latency, i, choice, seen))
    return rollout


@pytest.mark.parametrize(
    "guards", [Guards(max_error_rate=0.05), Guards(max_error_increase=0.03)], ids=repr
)
def test_what_the_servers_deadline_ends_after_the_stage_is_seen(guards: Guards) -> None:
    rollout = run(guards, 0.1, patience=60.0, failed=True)
    assert not rollout.is_promoting
    assert rollout.stage.number == 0


@pytest.mark.parametrize("guards", [Guards(max_latency_ratio=1.5), Guards(max_ttft_ratio=1.5)])
def test_clients_that_leave_what_hangs_are_seen(guards: Guards) -> None:
    rollout = run(guards, 0.1, patience=10.0, failed=False)
    assert (rollout.state, rollout.stage.number) == ("rolled_back", 0)


def test_one_that_does_not_hang_is_promoted() -> None:
    rollout = run(Guards(max_error_rate=0.05, max_latency_ratio=1.5), 0.0, patience=1, failed=True)
    assert rollout.is_promoting
