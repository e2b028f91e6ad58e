"""Whether an endpoint's probes hold it in, and when the next is due. Sends no probe itself.

An endpoint is in until a probe says otherwise: real traffic would find out as well, and a server
that has just started need not wait for an answer. But the first probe is due at once, and one
failure takes out an endpoint that has never passed. One that goes in and out needs twice as many
good probes each time, as routers damp a flapping route (RFC 2439).
"""

from random import Random

from headrace.routing.jitter import scattered
from headrace.routing.policy import RoutingPolicy


class Probing:
    """Probe when `next_at` has come, then `record` what came of it.

    `returned_at` is when the endpoint last came back, minus infinity if it never was out.
    """

    def __init__(self, policy: RoutingPolicy, random: Random, first_at: float) -> None:
        self._policy = policy
        self._random = random
        self._has_passed = False
        self._num_against = 0  # results in a row that speak against being where it is
        self._return_after = policy.return_after
        self.is_in = True
        self.next_at = first_at
        self.returned_at = float("-inf")

    def record(self, *, passed: bool, now: float) -> None:
        self._num_against = 0 if passed == self.is_in else self._num_against + 1
        if self._num_against >= self._num_needed:
            self._turn(now)
        self._has_passed |= passed
        self.next_at = now + scattered(self._interval, self._policy.jitter, self._random)

    def bring_back(self, now: float) -> None:
        """Let it in at once, as when there is nobody else."""
        if not self.is_in:
            self._turn(now)

    def ready_at(self, now: float) -> float:
        """The earliest time at which it may be in; where nobody else is, one good probe will do."""
        return now if self.is_in else max(now, self.next_at)

    @property
    def _num_needed(self) -> int:
        if not self.is_in:
            return self._return_after
        return self._policy.remove_after if self._has_passed else 1

    @property
    def _interval(self) -> float:
        is_trusted = self.is_in and self._num_against == 0
        return self._policy.probe_interval if is_trusted else self._policy.suspect_probe_interval

    def _turn(self, now: float) -> None:
        if self.is_in:
            self._return_after = self._next_return_after(now)
        else:
            self.returned_at = now
        self.is_in = not self.is_in
        self._num_against = 0

    def _next_return_after(self, now: float) -> int:
        if now - self.returned_at >= self._policy.calm_time:
            return self._policy.return_after
        return min(self._policy.max_return_after, 2 * self._return_after)
