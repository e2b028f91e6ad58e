"""The less loaded of two endpoints, by tokens in flight for their weight. Knows no latency."""

from collections.abc import Collection
from random import Random

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.balance.strategy.two_choices import better_of_two


class LeastLoad:
    """Tokens and not requests: one request may hold a thousand times what another does."""

    def __init__(self, roster: Roster, random: Random) -> None:
        self._roster = roster
        self._random = random

    def choose(
        self, key: RequestKey, _now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        num_tokens = max(1, key.num_tokens)

        def load_with_it(endpoint: Endpoint, weight: float) -> float:
            return (endpoint.tokens_in_flight + num_tokens) / weight

        return better_of_two(self._roster, load_with_it, self._random, excluding)
