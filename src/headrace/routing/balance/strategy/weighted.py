"""Turns in proportion to the weights, evenly spread. Knows no load."""

from collections.abc import Collection

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.interleaving import Interleaving
from headrace.routing.balance.strategy.strategy import RequestKey


class Weighted:
    """The turns of any two endpoints stay in proportion, to within one turn of each."""

    def __init__(self, roster: Roster) -> None:
        self._turns = Interleaving(roster, lambda _, weight: weight)

    def choose(
        self, _key: RequestKey, _now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        return self._turns.take(excluding)
