"""The endpoints of one model that take requests, with a strategy that chooses among them.

Told weights, and what is sent and comes back. Knows no transport, no time and no health.
"""

from collections.abc import Collection
from random import Random

from headrace.endpoints import StrategyName
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.least_latency import observe_latency
from headrace.routing.balance.strategy.select import STRATEGIES
from headrace.routing.balance.strategy.strategy import RequestKey


class Fleet:
    """All changes of a weight, of a latency and of what is in flight go through here."""

    def __init__(self, strategy: StrategyName, random: Random) -> None:
        self._roster = Roster()
        self._strategy = STRATEGIES[strategy](self._roster, random)

    @property
    def taking(self) -> Collection[Endpoint]:
        """Those that take requests, as they are whenever this is looked at."""
        return self._roster

    def weight(self, endpoint: Endpoint) -> float:
        """What it was placed with; 0 for one that takes no requests."""
        slot = self._roster.slot(endpoint)
        return 0.0 if slot is None else float(self._roster.weights[slot])

    def place(self, endpoint: Endpoint, weight: float) -> None:
        """Send it requests in proportion to this weight; none if it is 0.

        What is in flight to it may end afterwards.
        """
        if weight > 0:
            self._roster.join(endpoint, weight)
        else:
            self._roster.leave(endpoint)

    def choose(
        self, key: RequestKey, now: float, excluding: Collection[Endpoint] = ()
    ) -> Endpoint | None:
        """Who gets this request, but for those already tried; None when nobody is left."""
        return self._strategy.choose(key, now, excluding)

    def begin(self, endpoint: Endpoint, num_tokens: int) -> None:
        """A request of so many tokens is sent there."""
        self._roster.add_load(endpoint, 1, num_tokens)

    def observe_latency(self, endpoint: Endpoint, seconds: float, now: float) -> None:
        """The first byte of an answer has come after so long."""
        observe_latency(endpoint, seconds, now)

    def grow(self, endpoint: Endpoint, num_tokens: int) -> None:
        """Its answer has become longer by so many."""
        self._roster.add_load(endpoint, 0, num_tokens)

    def end(self, endpoint: Endpoint, num_tokens: int) -> None:
        """A request is over that held so many: what it began with and grew by."""
        self._roster.add_load(endpoint, -1, -num_tokens)
        assert endpoint.num_in_flight >= 0
        assert endpoint.tokens_in_flight >= 0

    def check(self) -> None:
        """Prove that its arrays agree with its endpoints."""
        self._roster.check()
