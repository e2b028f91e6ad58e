"""The endpoints of one model joined with their health: who gets a request, and why others do not.

Told what is sent, what comes back, and what probes say. Sends nothing and knows no transport.
"""

from collections.abc import Collection
from math import inf
from random import Random

from headrace.endpoints import MAX_WEIGHT, MIN_WEIGHT, EndpointStatus, StrategyName
from headrace.errors import ConfigurationError
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.fleet import Fleet
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.health.endpoint_health import EndpointHealth, retry_after
from headrace.routing.health.sent import Sent
from headrace.routing.health.timetable import Timetable
from headrace.routing.policy import RoutingPolicy

_CHANGES_A_CHOICE = 4  # thousands may be due: a late change does no harm, a late choice does


class Members:
    """Keeps the fleet as their health says, at every event and when one's time has come.

    An endpoint of weight 0 gets no requests.
    """

    def __init__(self, strategy: StrategyName, policy: RoutingPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._fleet = Fleet(strategy, random)
        self._members: dict[str, EndpointHealth] = {}
        self._changes: Timetable[EndpointHealth] = Timetable()

    def add(self, endpoint: Endpoint, now: float, *, is_probed: bool) -> None:
        """Let one more in; one that is not probed is in whatever happens, but for its breaker.

        Raise ConfigurationError for a weight out of range or a name that is taken.
        """
        _check_weight(endpoint)
        if endpoint.name in self._members:
            raise ConfigurationError(f"two endpoints have the name {endpoint.name}")
        first_probe_at = now if is_probed else inf
        health = EndpointHealth(endpoint, self._policy, self._random, first_probe_at)
        self._members[endpoint.name] = health
        self._settle(health, now)

    def is_draining(self, endpoint: Endpoint) -> bool:
        return self._health(endpoint).is_draining

    def set_draining(self, endpoint: Endpoint, draining: bool, now: float) -> None:  # noqa: FBT001
        """Send it nothing new, or again what its health allows."""
        health = self._health(endpoint)
        health.is_draining = draining
        self._settle(health, now)

    def renew(self, endpoint: Endpoint, now: float) -> None:
        """It has been restarted: what its requests came to until now is forgotten."""
        health = self._health(endpoint)
        health.renew()
        self._settle(health, now)

    def choose(
        self, key: RequestKey, now: float, excluding: Collection[Endpoint] = ()
    ) -> Endpoint | None:
        """Who gets this request, but for those already tried; None when nobody is left.

        It is to be begun before anything else happens.
        """
        self._apply_changes(now, _CHANGES_A_CHOICE)
        chosen = self._fleet.choose(key, now, excluding)
        while chosen is None and self._apply_changes(now, _CHANGES_A_CHOICE):
            chosen = self._fleet.choose(key, now, excluding)
        return chosen

    def begin(self, endpoint: Endpoint, num_tokens: int, now: float) -> Sent:
        """A request of so many tokens is sent to the one that was chosen."""
        health, hang_time = self._health(endpoint), self._policy.hang_time
        return Sent(self._fleet, health, num_tokens, now, self._settle, hang_time=hang_time)

    def record_probe(
        self, endpoint: Endpoint, *, passed: bool, reason: str | None, now: float
    ) -> None:
        health = self._health(endpoint)
        assert health.next_probe_at < inf, "it is not probed"
        health.probing.record(passed=passed, now=now)
        if not passed:
            health.reason = reason
        elif not self.can_take(now):
            health.probing.bring_back(now)  # damping it would leave nobody at all
        self._settle(health, now)

    def next_probe_at(self, endpoint: Endpoint) -> float:
        """Infinity for one that is not probed."""
        return self._health(endpoint).next_probe_at

    def taking(self, now: float) -> Collection[Endpoint]:
        """Those that take requests, as they are whenever this is looked at."""
        self._apply_changes(now, len(self._members))
        return self._fleet.taking

    def can_take(self, now: float) -> bool:
        """Whether anybody takes requests."""
        return bool(self._fleet.taking) or bool(self.taking(now))

    def retry_after(self, now: float) -> float:
        """Seconds until somebody may take requests, where nobody does: for a 503."""
        return retry_after(self._members.values(), self._policy, now)

    def statuses(self, now: float) -> list[EndpointStatus]:
        """All of them, in the order in which they came, with the weights that they have now."""
        return [health.status(now) for health in self._members.values()]

    def check(self, now: float) -> None:
        """Prove that the fleet does as health says, but for changes that wait to be applied."""
        self._fleet.check()
        self._changes.check()
        assert {each.endpoint for each in self._members.values()}.issuperset(self._fleet.taking)
        for health in self._members.values():
            weight, wanted = self._fleet.weight(health.endpoint), health.effective_weight(now)
            if self._changes.time(health) <= now:
                assert weight <= wanted, "what time brings is only more requests"
            else:
                assert weight == wanted
                assert self._changes.time(health) == health.changes_at(now)

    def _health(self, endpoint: Endpoint) -> EndpointHealth:
        health = self._members[endpoint.name]
        assert health.endpoint is endpoint
        return health

    def _settle(self, health: EndpointHealth, now: float) -> None:
        """Have the fleet do as this health says, until its next change."""
        self._fleet.place(health.endpoint, health.effective_weight(now))
        self._changes.put(health, health.changes_at(now))

    def _apply_changes(self, now: float, limit: int) -> int:
        """Settle some whose time has come; how many."""
        for number in range(limit):
            if (health := self._changes.take(now)) is None:
                return number
            self._settle(health, now)
        return limit


def _check_weight(endpoint: Endpoint) -> None:
    if endpoint.weight != 0 and not MIN_WEIGHT <= endpoint.weight <= MAX_WEIGHT:
        raise ConfigurationError(
            f"the weight of {endpoint.name} is {endpoint.weight};"
            f" it may be 0 or from {MIN_WEIGHT} to {MAX_WEIGHT}"
        )
