"""The faster of two endpoints, by an average of seconds to their first byte.

The cost is that of Finagle's Peak EWMA (`com.twitter.finagle.loadbalancer.PeakEwma`): the average
times the requests in flight, this one included, so that an endpoint that stalls is avoided before
any of them has ended. Two things differ. The average does not jump to a peak, since a first byte
that comes late is more often a long prompt's than a slow endpoint's. And it fades only where
nothing is in flight: an endpoint left alone for long is tried again, by one request at a time.
"""

from collections.abc import Collection
from math import exp
from random import Random

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.balance.strategy.two_choices import better_of_two

DECAY = 10.0
"""Seconds in which what was measured loses all but 1/e of its part, as in Finagle."""
_UNKNOWN = 1e6
"""Seconds, above any latency: who has not answered yet gets one request, and then the others."""


class LeastLatency:
    """Costs are divided by the weight."""

    def __init__(self, roster: Roster, random: Random) -> None:
        self._roster = roster
        self._random = random

    def choose(
        self, _key: RequestKey, now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        def cost(endpoint: Endpoint, weight: float) -> float:
            return expected_wait(endpoint, now) / weight

        return better_of_two(self._roster, cost, self._random, excluding)


def expected_wait(endpoint: Endpoint, now: float) -> float:
    """Seconds, as far as a product of latency and requests in flight tells them."""
    if endpoint.latency is None:
        return _UNKNOWN * endpoint.num_in_flight
    if endpoint.num_in_flight == 0:
        return endpoint.latency * exp(-_age(endpoint, now) / DECAY)
    return endpoint.latency * (endpoint.num_in_flight + 1)


def observe_latency(endpoint: Endpoint, seconds: float, now: float) -> None:
    """Take a time to first byte into the average; the older the average, the more it counts."""
    if endpoint.latency is None:
        endpoint.latency = seconds
    else:
        kept = exp(-_age(endpoint, now) / DECAY)
        endpoint.latency = endpoint.latency * kept + seconds * (1 - kept)
    endpoint.latency_at = now


def _age(endpoint: Endpoint, now: float) -> float:
    return max(0.0, now - endpoint.latency_at)
