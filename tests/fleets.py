"""Fleets of endpoints that all take requests with their own weights."""

from collections.abc import Iterable
from random import Random

from headrace.endpoints import StrategyName
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet


def fleet_of(endpoints: Iterable[Endpoint], strategy: StrategyName, seed: int = 0) -> Fleet:
    fleet = Fleet(strategy, Random(seed))
    for endpoint in endpoints:
        fleet.place(endpoint, endpoint.weight)
    return fleet
