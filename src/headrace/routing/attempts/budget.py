"""How many retries the whole traffic may have, so that they never amplify an outage.

The budget of Finagle (Eriksen, "Your Server as a Function", PLOS 2013): a share of the requests of
the last seconds and a small floor. Knows no request and no endpoint.
"""

from headrace.routing.health.sliding import SlidingCount
from headrace.routing.policy import RoutingPolicy


class RetryBudget:
    """One for all requests of a model; bounds the retries in any stretch of T seconds.

    There are no more than retry_share * requests + retry_floor * (T + 1.1 * retry_window), where
    the requests are those of the stretch and of the `retry_window` before it.
    """

    def __init__(self, policy: RoutingPolicy) -> None:
        self._share = policy.retry_share
        self._reserve = policy.retry_floor * policy.retry_window
        self._requests = SlidingCount(policy.retry_window)
        self._retries = SlidingCount(policy.retry_window)

    def deposit(self, now: float) -> None:
        """A request has arrived; its retries do not count as requests."""
        self._requests.add(now)

    def withdraw(self, now: float) -> bool:
        """Whether one more retry may be made; if so, it is counted."""
        allowed = self._share * self._requests.total(now) + self._reserve
        if self._retries.total(now) + 1 > allowed:
            return False
        self._retries.add(now)
        return True
