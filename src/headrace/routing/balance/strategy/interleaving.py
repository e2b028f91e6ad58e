"""Turns in proportion to shares, evenly spread. Deterministic; knows no load.

Stride scheduling: who comes next is whose turn is due first, and a turn is followed by the next one
a stride of 1 / share later (Waldspurger and Weihl, "Stride Scheduling: Deterministic
Proportional-Share Resource Management", MIT 1995). An alias table would cost less with many
endpoints, but draws at random, which is uneven in the short, and must be built anew on each change.
"""

from collections.abc import Callable, Collection

import numpy as np

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class Interleaving:
    """`share` gives an endpoint's share from itself and its weight on the roster."""

    def __init__(self, roster: Roster, share: Callable[[Endpoint, float], float]) -> None:
        self._roster = roster
        self._share = share
        self._due = roster.column(np.float64, self._first_due, self._due_again)
        self._clock = 0.0
        self._phase = 0.0

    def take(self, excluding: Collection[Endpoint]) -> Endpoint | None:
        """Give whose turn it is one turn; an excluded one keeps its own."""
        if not self._roster.endpoints:
            return None
        if not excluding:
            return self._give(int(self._due.values.argmin()))
        due = self._due.values.copy()
        due[self._roster.slots(excluding)] = np.inf
        slot = int(due.argmin())
        return None if np.isinf(due[slot]) else self._give(slot)

    def _give(self, slot: int) -> Endpoint:
        endpoint = self._roster.endpoints[slot]
        due = float(self._due.values[slot])
        self._clock = max(self._clock, due)
        self._due.values[slot] = due + 1 / self._share(endpoint, float(self._roster.weights[slot]))
        return endpoint

    def _first_due(self, endpoint: Endpoint, weight: float) -> float:
        # Multiples of the golden ratio never bunch: those with equal shares begin in between each
        # other, so that a heavy one's turns are not all taken before a light one's first.
        self._phase = (self._phase + _GOLDEN_RATIO) % 1
        return self._clock + self._phase / self._share(endpoint, weight)

    def _due_again(self, due: float, before: float, weight: float) -> float:
        """Leave of its stride the part that it had still to wait."""
        return self._clock + (due - self._clock) * before / weight
