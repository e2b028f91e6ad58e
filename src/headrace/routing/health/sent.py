"""One request at one endpoint, from its sending to its end, whatever that is."""

from collections.abc import Callable

import structlog

from headrace.routing.balance.fleet import Fleet
from headrace.routing.health.endpoint_health import EndpointHealth
from headrace.routing.outcome import Outcome

log = structlog.get_logger("headrace.routing")

Settle = Callable[[EndpointHealth, float], None]
"""Told whose health may have changed, and when."""


class Sent:
    """It counts as in flight, to the endpoint and to its breaker, until its only `end`."""

    def __init__(
        self,
        fleet: Fleet,
        health: EndpointHealth,
        num_tokens: int,
        now: float,
        settle: Settle,
        *,
        hang_time: float,
    ) -> None:
        self.endpoint = health.endpoint
        self._fleet = fleet
        self._health = health
        self._breaker = health.breaker  # a restarted endpoint has another one
        self._period = self._breaker.begin(now)
        self._num_tokens = num_tokens
        self._begun_at = now
        self._hang_time = hang_time
        self._is_answered = False
        self._has_ended = False
        self._settle = settle
        fleet.begin(self.endpoint, num_tokens)
        settle(health, now)

    def first_byte(self, now: float) -> None:
        """Its answer has begun; only the first word of this counts."""
        if not self._is_answered:
            self._is_answered = True
            self._fleet.observe_latency(self.endpoint, now - self._begun_at, now)

    def is_hanging(self, now: float) -> bool:
        """Whether nothing has come for longer than an answer's first byte may take."""
        return not self._is_answered and now - self._begun_at >= self._hang_time

    def grow(self, num_tokens: int) -> None:
        """Its answer has become longer by so many."""
        assert not self._has_ended
        self._num_tokens += num_tokens
        self._fleet.grow(self.endpoint, num_tokens)

    def end(self, outcome: Outcome | None, now: float, reason: str | None = None) -> None:
        """It is over; `reason` is what a failure says of the endpoint."""
        assert not self._has_ended
        self._has_ended = True
        self._fleet.end(self.endpoint, self._num_tokens)
        before = self._breaker.state(now)
        self._breaker.end(self._period, outcome, now)
        if (after := self._breaker.state(now)) != before:
            log.warning(
                "breaker.turned",
                state=after,
                model=self.endpoint.model_id,
                endpoint=self.endpoint.name,
                reason=reason,
            )
        if outcome == "failure" and self._breaker is self._health.breaker:
            self._health.reason = reason
        self._settle(self._health, now)
