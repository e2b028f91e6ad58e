"""When an endpoint that fails is left alone. Knows outcomes, no requests and no endpoint.

closed --too many failures--> open --time passes--> half_open --successes--> closed
                                ^-----------------one failure-----'

Too many: `failure_threshold` failures in a row, however slowly they come, or as many within
`failure_window` that make up `failure_share` of its outcomes. The first finds the endpoint that is
dead in a moment; the second the one that fails often, however busy it is. A client's mistake counts
as a success while closed but does not close a half-open breaker: it shows that the endpoint reads
requests, not that it answers them. Neutral outcomes count nowhere.
"""

from random import Random

from headrace.endpoints import BreakerState
from headrace.routing.health.sliding import SlidingCount
from headrace.routing.jitter import scattered
from headrace.routing.outcome import Outcome
from headrace.routing.policy import RoutingPolicy


class Breaker:
    """Every request begins here when it is sent and ends here when it is over, whatever happened.

    `closed_at` is when the breaker last closed, minus infinity if it never was open.
    """

    def __init__(self, policy: RoutingPolicy, random: Random) -> None:
        self._policy = policy
        self._random = random
        self._outcomes = SlidingCount(policy.failure_window)
        self._failures = SlidingCount(policy.failure_window)
        self._failures_in_row = 0
        self._open_until: float | None = None  # None: closed; in the past: half-open
        self._open_time = 0.0
        self._period = 0
        self._num_probes = 0
        self._num_successes = 0
        self.closed_at = float("-inf")

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "open" if now < self._open_until else "half_open"

    def takes_requests(self, now: float) -> bool:
        if self._open_until is None:
            return True
        return now >= self._open_until and self._num_probes < self._policy.max_half_open

    def ready_at(self, now: float) -> float:
        """The earliest time at which it may take requests; a place of a probe may be free now."""
        return now if self._open_until is None else max(now, self._open_until)

    def begin(self, now: float) -> int:
        """Count a request in; `end` wants the period that this returns."""
        assert self.takes_requests(now), "no request is sent past a breaker"
        if self._open_until is not None:
            self._num_probes += 1
        return self._period

    def end(self, period: int, outcome: Outcome | None, now: float) -> None:
        """Count it out; None when its client left before it could show anything."""
        if period != self._period:
            return  # it began before the state changed: its endpoint has been judged since
        if self._open_until is None:
            self._count(outcome, now)
        else:
            self._num_probes -= 1
            self._judge_probe(outcome, now)

    def _count(self, outcome: Outcome | None, now: float) -> None:
        if outcome is None or outcome == "neutral":
            return
        self._outcomes.add(now)
        if outcome == "failure":
            self._failures.add(now)
            self._failures_in_row += 1
            if self._is_too_much(now):
                self._open(now)
        else:
            self._failures_in_row = 0

    def _is_too_much(self, now: float) -> bool:
        threshold = self._policy.failure_threshold
        if self._failures_in_row >= threshold:
            return True
        failures = self._failures.total(now)
        share = self._policy.failure_share * self._outcomes.total(now)
        return failures >= threshold and failures >= share

    def _judge_probe(self, outcome: Outcome | None, now: float) -> None:
        if outcome == "failure":
            self._open(now)
        elif outcome == "success":
            self._num_successes += 1
            if self._num_successes >= self._policy.success_threshold:
                self._close(now)

    def _open(self, now: float) -> None:
        self._open_time = self._next_open_time(now)
        self._open_until = now + scattered(self._open_time, self._policy.jitter, self._random)
        self._begin_period()

    def _next_open_time(self, now: float) -> float:
        policy = self._policy
        was_calm = self._open_until is None and now - self.closed_at >= policy.calm_time
        if was_calm:
            return policy.open_time
        return min(policy.max_open_time, self._open_time * policy.open_time_growth)

    def _close(self, now: float) -> None:
        self._open_until = None
        self.closed_at = now
        self._begin_period()

    def _begin_period(self) -> None:
        self._period += 1
        self._num_probes = self._num_successes = self._failures_in_row = 0
        self._outcomes.clear()
        self._failures.clear()
