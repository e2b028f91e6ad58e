"""The same endpoint for the same user, while it has room. Knows no prompts.

Rendezvous hashing: each endpoint draws a number for each user, and the highest wins (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM ToN 1998), so that one that
goes moves only its own users, to all the others alike, and one that comes takes only its share. A
ring needs a hundred points an endpoint to spread as evenly, all to be moved on each change. The
weight of the draw is that of Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA
2005: log(u) / weight.

Nobody gets more than `BOUND` times its share of the requests in flight, rounded up (Mirrokni,
Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018). Who finds no room
goes to its next highest draw, which is another one for each user, so that a full endpoint does not
fill its neighbour (Chen, Coleman and Shrivastava, "Revisiting Consistent Hashing with Bounded
Loads", AAAI 2021).
"""

from collections.abc import Collection
from hashlib import blake2b
from math import log
from random import Random

import numpy as np

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Floats, Roster
from headrace.routing.balance.strategy.least_load import LeastLoad
from headrace.routing.balance.strategy.strategy import RequestKey

BOUND = 1.25

# The multipliers of splitmix64's finalizer (Steele, Lea and Flood, OOPSLA 2014).
_MULTIPLY = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_AGAIN = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LOG_OF_ALL = log(2.0**64)
_TRIES = 4  # before all are asked for room at once


class ConsistentHash:
    """A request that names no user has nothing to hash: the less loaded of two takes it."""

    def __init__(self, roster: Roster, random: Random) -> None:
        self._roster = roster
        self._anonymous = LeastLoad(roster, random)
        self._seeds = roster.column(np.uint64, lambda endpoint, _: _hash(endpoint.name))

    def choose(
        self, key: RequestKey, now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        if key.user is None:
            return self._anonymous.choose(key, now, excluding)
        excluded = self._roster.slots(excluding)
        if len(excluded) == len(self._roster):
            return None
        ranks = self._ranks(key.user)
        if excluded:
            ranks[excluded] = -np.inf
        return self._roster.endpoints[self._first_with_room(ranks, self._room(excluded))]

    def _ranks(self, user: str) -> Floats:
        """log(u) / weight by slot, with u evenly spread over (0, 1], another for each user.

        Equal weights leave the order of u as it is, and most of the time goes into logarithms.
        """
        bits = self._seeds.values ^ np.uint64(_hash(user))
        bits *= _MULTIPLY
        bits ^= bits >> _HALF
        bits *= _MULTIPLY_AGAIN
        ranks = bits.astype(np.float64)
        if not self._roster.is_even:
            np.log(ranks, out=ranks)  # one in 2**64 is zero
            ranks -= _LOG_OF_ALL
            ranks /= self._roster.weights
        return ranks

    def _room(self, excluded: list[int]) -> float:
        """How many requests may be in flight for a weight of one.

        Together that is more than are in flight and this one, so somebody always has room.
        """
        weight, in_flight, _ = self._roster.totals(excluded)
        return BOUND * (in_flight + 1) / weight

    def _first_with_room(self, ranks: Floats, room: float) -> int:
        for _ in range(_TRIES):
            slot = int(ranks.argmax())
            if self._roster.num_in_flight[slot] < room * self._roster.weights[slot]:
                return slot
            ranks[slot] = -np.inf
        ranks[self._roster.num_in_flight >= room * self._roster.weights] = -np.inf
        return int(ranks.argmax())


def _hash(text: str) -> int:
    """64 bits, equal in every process and release."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
