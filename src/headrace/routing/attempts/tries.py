"""The way of one request from endpoint to endpoint: which is next, and after what wait."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from headrace.routing.attempts.budget import RetryBudget
from headrace.routing.attempts.events import RoutingEvents
from headrace.routing.attempts.retry import RetryPlan
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.outcome import Verdict
from headrace.routing.places import NOBODY, Place, Places
from headrace.routing.policy import RoutingPolicy


@dataclass(frozen=True, slots=True)
class Retrying:
    """What all requests of a version share."""

    places: Places
    budget: RetryBudget
    policy: RoutingPolicy
    random: Random
    events: RoutingEvents


class Tries:
    """`first`, then `after` each try that failed."""

    def __init__(self, shared: Retrying, key: RequestKey, deadline: float | None) -> None:
        self._shared = shared
        self._key = key
        self._deadline = deadline
        self._plan: RetryPlan | None = None

    @property
    def key(self) -> RequestKey:
        return self._key

    async def first(self, unable: Collection[Endpoint] = NOBODY) -> Place:
        """The best place; raises why there is none."""
        self._shared.budget.deposit(time.monotonic())
        place = await self._shared.places.take(self._key, self._deadline, unable=unable)
        if place is None:
            raise self._shared.places.refused()
        return place

    async def after(
        self,
        place: Place,
        verdict: Verdict,
        *,
        unable: Collection[Endpoint] = NOBODY,
        is_free: bool = False,
    ) -> Place | None:
        """Where to try next, once it is time to; None when that was the last try.

        A free one is not a retry that could amplify an outage: its answer has begun.
        """
        shared, now = self._shared, time.monotonic()
        if self._plan is None:
            self._plan = RetryPlan(shared.policy, self._deadline, shared.random)
            self._plan.begin(place.endpoint)
        taking = [each for each in shared.places.members.taking(now) if each not in unable]
        following = self._plan.after(verdict, taking, now)
        if following is None or not (is_free or shared.budget.withdraw(now)):
            return None
        await asyncio.sleep(following.delay)
        return await self._begun(following.excluding, unable)

    async def at_once(self, unable: Collection[Endpoint]) -> Place | None:
        """Where a request goes whose worker died: to another one, or to the one that follows."""
        return await self._begun(NOBODY, unable)

    async def _begun(
        self, tried: Collection[Endpoint], unable: Collection[Endpoint]
    ) -> Place | None:
        place = await self._shared.places.take(
            self._key, self._deadline, tried=tried, unable=unable
        )
        if place is not None:
            self._shared.events.retried()
            if self._plan is not None:
                self._plan.begin(place.endpoint)
        return place
