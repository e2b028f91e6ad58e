"""The better of two endpoints drawn at random. Knows not what makes one better.

Two choices keep the fullest close to the mean (Mitzenmacher, "The Power of Two Choices in
Randomized Load Balancing", IEEE TPDS 2001) without a look at the others. They are drawn in
proportion to the weights: under an even draw a heavy endpoint among many light ones never gets its
share (Wieder, "Balanced Allocations with Heterogeneous Bins", SPAA 2007).
"""

from collections.abc import Callable, Collection
from random import Random

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Floats, Roster, draw

Cost = Callable[[Endpoint, float], float]
"""What a request costs at an endpoint of this weight; the lower is the better."""


def better_of_two(
    roster: Roster, cost: Cost, random: Random, excluding: Collection[Endpoint]
) -> Endpoint | None:
    if not roster.endpoints:
        return None
    cumulative = roster.cumulative_weights(excluding)
    if not cumulative[-1]:
        return None
    first, second = _pair(roster, cumulative, random)
    if cost(*first) <= cost(*second):
        return first[0]
    return second[0]


def _pair(
    roster: Roster, cumulative: Floats, random: Random
) -> tuple[tuple[Endpoint, float], tuple[Endpoint, float]]:
    """Two with their weights: different ones, unless there is only one."""
    total = float(cumulative[-1])
    first = draw(cumulative, random)
    weight = float(roster.weights[first])
    # All weights but the first one's, as a way around the circle that starts where it ends.
    point = float(cumulative[first]) + random.random() * (total - weight)
    if point >= total:
        point -= total
    second = int(cumulative.searchsorted(point, side="right"))
    return (
        (roster.endpoints[first], weight),
        (roster.endpoints[second], float(roster.weights[second])),
    )
