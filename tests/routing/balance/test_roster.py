from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster, draw

ENDPOINTS = st.integers(0, 19)
WEIGHTS = st.sampled_from([1e-7, 0.5, 1.0, 3.0, 1e6])


class RosterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.all = [Endpoint(f"e{number}") for number in range(20)]
        self.roster = Roster()
        self.lengths = self.roster.column(np.int64, lambda endpoint, _: len(endpoint.name))
        self.weights: dict[Endpoint, float] = {}

    @rule(number=ENDPOINTS, weight=WEIGHTS)
    def join(self, number: int, weight: float) -> None:
        self.roster.join(self.all[number], weight)
        self.weights[self.all[number]] = weight

    @rule(number=ENDPOINTS)
    def leave(self, number: int) -> None:
        self.roster.leave(self.all[number])
        self.weights.pop(self.all[number], None)

    @rule(number=ENDPOINTS, tokens=st.integers(0, 1000))
    def load(self, number: int, tokens: int) -> None:
        self.roster.add_load(self.all[number], 1, tokens)

    @rule(excluded=st.sets(ENDPOINTS))
    def sum_weights(self, excluded: set[int]) -> None:
        excluding = {self.all[number] for number in excluded}
        expected = [0 if e in excluding else self.weights[e] for e in self.roster.endpoints]
        cumulative = self.roster.cumulative_weights(excluding)
        assert cumulative.tolist() == np.cumsum(expected).tolist()

    @invariant()
    def it_holds_who_joined(self) -> None:
        self.roster.check()
        assert set(self.roster.endpoints) == set(self.weights)
        assert self.roster.weights.tolist() == [self.weights[e] for e in self.roster.endpoints]
        assert self.lengths.values.tolist() == [len(e.name) for e in self.roster.endpoints]


RosterMachine.TestCase.settings = settings(deadline=None, max_examples=50)
TestRoster = RosterMachine.TestCase


@given(
    st.lists(st.sampled_from([0.0, 1e-7, 1.0, 1e6]), min_size=1).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_a_slot_without_weight_is_never_drawn(weights: list[float], point: float) -> None:
    class Fixed(Random):
        def random(self) -> float:
            return point

    assert weights[draw(np.cumsum(weights), Fixed())] > 0
