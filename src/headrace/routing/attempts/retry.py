"""The tries of one request: whether, when and where the next one goes. Sends nothing."""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from random import Random

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.jitter import scattered
from headrace.routing.outcome import Verdict
from headrace.routing.policy import RoutingPolicy


@dataclass(frozen=True, slots=True)
class NextTry:
    """Wait `delay` seconds, then choose among what takes requests then, but none of `excluding`."""

    delay: float
    excluding: frozenset[Endpoint]


class RetryPlan:
    """Remembers which endpoints have had the request and what each asked for.

    Another endpoint is always before one that was tried, and the one that failed last is the very
    last. An endpoint's Retry-After binds only tries on that endpoint.
    """

    def __init__(self, policy: RoutingPolicy, deadline: float | None, random: Random) -> None:
        self._policy = policy
        self._deadline = inf if deadline is None else deadline
        self._random = random
        self._delay = policy.retry_delay
        self._num_tries: dict[Endpoint, int] = {}
        self._not_before: dict[Endpoint, float] = {}
        self._last: Endpoint | None = None

    def begin(self, endpoint: Endpoint) -> None:
        """The request is being sent there."""
        self._num_tries[endpoint] = self._num_tries.get(endpoint, 0) + 1
        self._last = endpoint

    def after(self, verdict: Verdict, taking: Collection[Endpoint], now: float) -> NextTry | None:
        """What follows this end of the last try; None: its error is the request's answer.

        `taking` are the endpoints that take requests now.
        """
        self._note(verdict, now)
        if verdict.retry == "never" or sum(self._num_tries.values()) >= self._policy.max_tries:
            return None
        delay = self._next_delay()
        tried = self._num_tries.keys()
        if any(endpoint not in tried for endpoint in taking):
            return self._within_deadline(NextTry(delay, frozenset(tried)), now)
        return self._again(taking, delay, now)

    def _note(self, verdict: Verdict, now: float) -> None:
        assert self._last is not None, "a try ends after it has begun"
        if verdict.retry == "elsewhere":
            self._not_before[self._last] = inf
        elif verdict.retry_after is not None:
            self._not_before[self._last] = now + verdict.retry_after

    def _next_delay(self) -> float:
        delay = scattered(self._delay, self._policy.jitter, self._random)
        longer = self._delay * self._policy.retry_delay_growth
        self._delay = min(self._policy.max_retry_delay, longer)
        return delay

    def _again(self, tried: Collection[Endpoint], delay: float, now: float) -> NextTry | None:
        """Take the best of those that have had the request already."""
        latest = now + self._policy.max_retry_after
        usable = [each for each in tried if self._not_before.get(each, now) <= latest]
        if not usable:
            return None
        best = min(usable, key=self._rank)
        delay = max(delay, self._not_before.get(best, now) - now)
        return self._within_deadline(
            NextTry(delay, frozenset(self._num_tries.keys() - {best})), now
        )

    def _rank(self, endpoint: Endpoint) -> tuple[bool, int, float]:
        not_before = self._not_before.get(endpoint, 0.0)
        return (endpoint is self._last, self._num_tries[endpoint], not_before)

    def _within_deadline(self, next_try: NextTry, now: float) -> NextTry | None:
        return next_try if now + next_try.delay < self._deadline else None
