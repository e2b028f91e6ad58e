"""The strategies by the names that a configuration gives them."""

from collections.abc import Callable
from random import Random

from headrace.endpoints import StrategyName
from headrace.routing.balance.roster import Roster
from headrace.routing.balance.strategy.consistent_hash import ConsistentHash
from headrace.routing.balance.strategy.least_latency import LeastLatency
from headrace.routing.balance.strategy.least_load import LeastLoad
from headrace.routing.balance.strategy.prefix_affinity import PrefixAffinity
from headrace.routing.balance.strategy.round_robin import RoundRobin
from headrace.routing.balance.strategy.strategy import Strategy
from headrace.routing.balance.strategy.weighted import Weighted

STRATEGIES: dict[StrategyName, Callable[[Roster, Random], Strategy]] = {
    "round_robin": lambda roster, _: RoundRobin(roster),
    "weighted": lambda roster, _: Weighted(roster),
    "least_latency": LeastLatency,
    "least_load": LeastLoad,
    "consistent_hash": ConsistentHash,
    "prefix_affinity": PrefixAffinity,
}
