from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.registry.lifecycle import MOVES, SERVING, IllegalMoveError, Lifecycle, State

STATES: tuple[State, ...] = get_args(State)

PATHS: dict[State, list[State]] = {
    "loading": [],
    "health_check": ["health_check"],
    "ready": ["health_check", "ready"],
    "active": ["health_check", "ready", "active"],
    "deprecated": ["health_check", "ready", "active", "deprecated"],
    "unloading": ["unloading"],
    "failed": ["failed"],
}
"""How a new version gets into each state."""


def in_state(state: State) -> Lifecycle:
    lifecycle = Lifecycle("chat@2")
    for step in PATHS[state]:
        lifecycle.move(step)
    return lifecycle


def reachable(state: State) -> set[State]:
    found: set[State] = set()
    waiting = [state]
    while waiting:
        news = MOVES[waiting.pop()] - found
        found |= news
        waiting += news
    return found


def test_the_moves_know_every_state_and_no_other() -> None:
    assert set(MOVES) == set(STATES) == set(PATHS)
    assert all(targets <= set(STATES) for targets in MOVES.values())
    assert set(STATES) >= SERVING


@pytest.mark.parametrize("state", STATES)
def test_a_version_can_get_into_every_state(state: State) -> None:
    assert in_state(state).state == state


@pytest.mark.parametrize("target", STATES)
@pytest.mark.parametrize("state", STATES)
def test_a_move_is_made_where_the_table_leads_and_refused_elsewhere(
    state: State, target: State
) -> None:
    lifecycle = in_state(state)
    assert lifecycle.can_move(target) == (target in MOVES[state])
    if lifecycle.can_move(target):
        lifecycle.move(target)
        assert lifecycle.state == target
        return
    with pytest.raises(IllegalMoveError, match=f"chat@2 cannot go from {state} to {target}"):
        lifecycle.move(target)
    assert lifecycle.state == state


@pytest.mark.parametrize("state", ["failed", "unloading"])
def test_nothing_leads_back_into_service(state: State) -> None:
    assert not reachable(state) & SERVING


@pytest.mark.parametrize("state", STATES)
def test_no_state_leads_to_itself(state: State) -> None:
    assert state not in MOVES[state]


@pytest.mark.parametrize("state", [state for state in STATES if state != "unloading"])
def test_every_version_can_be_unloaded(state: State) -> None:
    assert "unloading" in MOVES[state]


def test_only_a_version_that_passed_its_health_check_serves() -> None:
    into_service = {state for state in MOVES if MOVES[state] & SERVING and state not in SERVING}
    assert into_service == {"health_check"}


class Life(RuleBasedStateMachine):
    """Whatever is tried: only allowed moves change anything, and an end is an end."""

    def __init__(self) -> None:
        super().__init__()
        self.lifecycle = Lifecycle("chat@2")
        self.past: list[State] = ["loading"]

    @property
    def allowed(self) -> frozenset[State]:
        return MOVES[self.past[-1]]

    @precondition(lambda self: self.allowed)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.allowed)))
        self.lifecycle.move(target)
        self.past.append(target)

    @rule(data=st.data())
    def try_another(self, data: st.DataObject) -> None:
        others = sorted(set(STATES) - self.allowed)
        with pytest.raises(IllegalMoveError):
            self.lifecycle.move(data.draw(st.sampled_from(others)))

    @invariant()
    def its_state_is_that_of_the_last_allowed_move(self) -> None:
        assert self.lifecycle.state == self.past[-1]

    @invariant()
    def it_serves_only_after_a_health_check_and_never_after_its_end(self) -> None:
        is_serving = self.lifecycle.state in SERVING
        assert not is_serving or "health_check" in self.past
        assert not is_serving or not {"failed", "unloading"} & set(self.past)


TestLife = Life.TestCase
