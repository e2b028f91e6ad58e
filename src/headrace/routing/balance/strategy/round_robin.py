"""Each endpoint in its turn, whatever its weight. Knows no load.

Only one that starts slowly is passed over, as often as its part of its own weight says.
"""

from collections.abc import Collection

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.interleaving import Interleaving
from headrace.routing.balance.strategy.strategy import RequestKey


class RoundRobin:
    """Equal turns."""

    def __init__(self, roster: Roster) -> None:
        self._turns = Interleaving(roster, lambda endpoint, weight: weight / endpoint.weight)

    def choose(
        self, _key: RequestKey, _now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        return self._turns.take(excluding)
