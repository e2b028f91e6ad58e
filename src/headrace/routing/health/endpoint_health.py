"""Whether an endpoint belongs to those that take requests, and with what weight.

Joins what probes say, what real traffic says and whether somebody drains it. Sends nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from random import Random

from headrace.endpoints import EndpointStatus
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.health.breaker import Breaker
from headrace.routing.health.probing import Probing
from headrace.routing.policy import RoutingPolicy

NUM_STEPS = 20
"""In which a weight grows, so that who keeps it need not look at it for every request."""


class EndpointHealth:
    """The `breaker` sees every request, `probing` every probe; `is_draining` is set from outside.

    A draining endpoint takes no new request; those it has go on to their end. One that is never to
    be probed has its first probe at infinity. `reason` is what its last failure said.
    """

    def __init__(
        self, endpoint: Endpoint, policy: RoutingPolicy, random: Random, first_probe_at: float
    ) -> None:
        self.endpoint = endpoint
        self.breaker = Breaker(policy, random)
        self.probing = Probing(policy, random, first_probe_at)
        self.is_draining = False
        self.reason: str | None = None
        self._policy = policy
        self._random = random

    def renew(self) -> None:
        """Forget what real traffic said: the endpoint has been restarted."""
        self.breaker = Breaker(self._policy, self._random)

    def takes_requests(self, now: float) -> bool:
        return self._is_wanted and self.probing.is_in and self.breaker.takes_requests(now)

    def effective_weight(self, now: float) -> float:
        """The endpoint's weight, less while it is fresh from being out; 0 when it takes nothing."""
        return self.endpoint.weight * self._trust(now) if self.takes_requests(now) else 0.0

    def ready_at(self, now: float) -> float:
        """The earliest time at which it may take requests; infinity while nobody wants that."""
        if not self._is_wanted:
            return inf
        return max(self.probing.ready_at(now), self.breaker.ready_at(now))

    def changes_at(self, now: float) -> float:
        """The next time at which an answer above changes though nothing is begun, ended or probed.

        So that a router need not ask thousands of endpoints for every request.
        """
        if self.breaker.state(now) == "open":
            return self.breaker.ready_at(now)
        num_steps = self._num_steps(now)
        return inf if num_steps == NUM_STEPS else self._step_at(num_steps + 1)

    def status(self, now: float) -> EndpointStatus:
        endpoint, is_taking = self.endpoint, self.takes_requests(now)
        return EndpointStatus(
            name=endpoint.name,
            kind=endpoint.kind,
            is_taking=is_taking,
            breaker=self.breaker.state(now),
            weight=self.effective_weight(now),
            num_in_flight=endpoint.num_in_flight,
            tokens_in_flight=endpoint.tokens_in_flight,
            latency=endpoint.latency,
            reason=self.reason if self._is_failing(now) and not is_taking else None,
        )

    @property
    def next_probe_at(self) -> float:
        return self.probing.next_at

    @property
    def _is_wanted(self) -> bool:
        return not self.is_draining and self.endpoint.weight > 0

    def _is_failing(self, now: float) -> bool:
        """Whether a failure is why it takes no requests, if it takes none."""
        return not self.probing.is_in or self.breaker.state(now) != "closed"

    def _trust(self, now: float) -> float:
        """How much of its weight it has: a share while half-open, then growing to the whole."""
        share = self._policy.slow_start_share
        if self.breaker.state(now) == "half_open":
            return share
        return 1.0 - (1.0 - share) * (1.0 - self._num_steps(now) / NUM_STEPS)

    def _num_steps(self, now: float) -> int:
        """How many steps of the slow start are done."""
        # Compared with the very times that are told, so that no rounding makes a step early.
        if now >= self._step_at(NUM_STEPS):
            return NUM_STEPS
        return bisect_right(range(1, NUM_STEPS), now, key=self._step_at)

    def _step_at(self, number: int) -> float:
        returned_at = max(self.breaker.closed_at, self.probing.returned_at)
        return returned_at + self._policy.slow_start_time * number / NUM_STEPS


def retry_after(members: Iterable[EndpointHealth], policy: RoutingPolicy, now: float) -> float:
    """Seconds until one of these may take requests: what a 503 tells the client.

    Where all are draining nothing here will change by itself; then as long as a probe of a
    suspect takes to come round.
    """
    ready_at = min((health.ready_at(now) for health in members), default=inf)
    wait = policy.suspect_probe_interval if ready_at == inf else ready_at - now
    return max(policy.min_retry_after, wait)
