"""The endpoint that has seen most of the prompt, unless it is too loaded for that.

Each is worth the matched part of the prompt minus BETA times its load relative to the mean, as in
vLLM's production-stack (pull request 1035). A match is never an absolute priority: prompts that all
begin alike would go to one endpoint (vllm-project/tpu-inference, issue 3307).

Loads are tokens in flight for the weight. One of those compared is always the least loaded of all,
at or below the mean and so worth zero or more. Hence who is chosen for its match has at most
(1 + 1 / BETA) times the mean load, this request not counted, where a mean below one token is one.
"""

from collections.abc import Collection
from random import Random

import numpy as np

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.roster import Floats, Roster, draw
from headrace.routing.balance.strategy.prefixes import Prefixes, beginning_of
from headrace.routing.balance.strategy.strategy import RequestKey

BETA = 1.0
_TRIES = 4  # that all miss if only few endpoints are idle


class PrefixAffinity:
    """A prompt that nobody has seen goes to the least loaded, not to the smallest cache."""

    def __init__(self, roster: Roster, random: Random) -> None:
        self._roster = roster
        self._random = random
        self._prefixes = Prefixes()

    def choose(
        self, key: RequestKey, _now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        excluded = self._roster.slots(excluding)
        if len(excluded) == len(self._roster):
            return None
        digests, share = beginning_of(key)
        chosen = self._best(self._prefixes.matched(digests), share, excluded)
        self._prefixes.remember(digests, chosen)
        return chosen

    def _best(self, depths: dict[Endpoint, int], share: float, excluded: list[int]) -> Endpoint:
        """The one worth most, given how many chunks some have seen and what part one chunk is."""
        roster = self._roster
        loads = roster.tokens_in_flight / roster.weights
        if excluded:
            loads[excluded] = np.inf
        mean, unit = self._mean_load(excluded)
        parts = {self._least_loaded(loads): 0.0}  # first, so that it wins where two are worth equal
        for holder, depth in depths.items():
            if (slot := roster.slot(holder)) is not None:
                parts[slot] = depth * share
        best = max(parts, key=lambda slot: parts[slot] - BETA * (loads.item(slot) - mean) / unit)
        return roster.endpoints[best]

    def _mean_load(self, excluded: list[int]) -> tuple[float, float]:
        """The mean, and what loads are relative to: the mean, or a token at a mean weight."""
        weight, _, tokens = self._roster.totals(excluded)
        return tokens / weight, max(tokens, len(self._roster) - len(excluded)) / weight

    def _least_loaded(self, loads: Floats) -> int:
        """Of many idle endpoints any, by weight: they shall not all leave it to the first."""
        least = int(loads.argmin())
        if loads[least] > 0:
            return least
        for _ in range(_TRIES):
            slot = draw(self._roster.cumulative_weights(()), self._random)
            if loads[slot] == 0:
                return slot
        return least
