"""What is seen of both versions during one stage, and what its guards say of it.

A stage has one split of traffic and so guards of its own. Failures count for latency neither way:
how fast a request failed is no merit. What was cut off counts there as what it took at least; where
its client left, nobody knows whether it would have failed, and it counts for latency alone.

That a candidate which is as good as the stable version is ever sent back has the probability ALPHA
at most, however often it is looked at: for that, ALPHA is divided among the guards of all stages.
That one which is over a limit is ever promoted has the probability ALPHA at most, undivided: for
that, one guard would have to err in every stage (an intersection-union test: Berger,
"Multiparameter hypothesis testing and acceptance sampling", 1982).
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from headrace.routing.observation import Observation
from headrace.routing.rollouts.decision import Numbers, numbers_of
from headrace.routing.rollouts.limit import RateLimit
from headrace.routing.rollouts.plan import GuardName, Guards
from headrace.routing.rollouts.waiting import MIN_REQUESTS
from headrace.routing.stats.comparison import Comparison, Reading
from headrace.routing.stats.guard import ErrorGuard, LatencyGuard

ALPHA = 0.05


class _Guard(Protocol):
    is_compared: bool

    @property
    def users(self) -> tuple[int, int]:
        """Of the candidate and of the stable version."""
        ...

    def add(self, seen: Observation, *, candidate: bool) -> None: ...

    def read(self, alpha: float) -> Reading: ...


class Watch:
    """The guards of one stage, of a rollout that has so many stages."""

    def __init__(self, guards: Guards, *, num_stages: int, is_compared: bool) -> None:
        limits = dict(guards)
        self._strict = ALPHA / (num_stages * len(limits))
        self._limits = {
            name: limit for name, limit in limits.items() if is_compared or name == "max_error_rate"
        }
        self._guards = {name: _MADE_BY[name](limit) for name, limit in self._limits.items()}
        self.num_candidate = 0
        self.num_stable = 0
        self.num_candidate_left = 0
        self.num_stable_left = 0

    def add(self, seen: Observation, *, candidate: bool) -> None:
        self.num_candidate += candidate
        self.num_stable += not candidate
        self.num_candidate_left += candidate and seen.has_left
        self.num_stable_left += not candidate and seen.has_left
        for guard in self._guards.values():
            guard.add(seen, candidate=candidate)

    def read(self) -> dict[str, Numbers]:
        return {
            name: numbers_of(
                guard.read(self._strict),
                guard.read(ALPHA),
                self._limits[name],
                guard.users,
                is_compared=guard.is_compared,
            )
            for name, guard in self._guards.items()
        }


class _ErrorRate:
    is_compared = False

    def __init__(self, limit: float) -> None:
        self._limit = RateLimit(limit)

    @property
    def users(self) -> tuple[int, int]:
        return self._limit.users.num_clusters, 0

    def add(self, seen: Observation, *, candidate: bool) -> None:
        if candidate and not seen.has_left:
            self._limit.add(seen.user, failed=seen.failed)

    def read(self, alpha: float) -> Reading:
        return self._limit.read(alpha)


class _ErrorIncrease:
    is_compared = True

    def __init__(self, limit: float) -> None:
        self._guard = ErrorGuard.begin(limit, min_samples=MIN_REQUESTS)

    @property
    def users(self) -> tuple[int, int]:
        return _users(self._guard.compared)

    def add(self, seen: Observation, *, candidate: bool) -> None:
        if not seen.has_left:
            self._guard.add(seen.user, candidate=candidate, failed=seen.failed)

    def read(self, alpha: float) -> Reading:
        return msgspec.structs.replace(self._guard, alpha=alpha).read()


class _Ratio:
    is_compared = True

    def __init__(self, seconds: Callable[[Observation], float | None], limit: float) -> None:
        self._seconds = seconds
        self._guard = LatencyGuard.begin(limit, min_samples=MIN_REQUESTS)

    @property
    def users(self) -> tuple[int, int]:
        return _users(self._guard.compared)

    def add(self, seen: Observation, *, candidate: bool) -> None:
        seconds = self._seconds(seen)
        if seconds is not None and (seen.is_cut_off or not seen.failed):
            self._guard.add(seen.user, seconds, candidate=candidate)

    def read(self, alpha: float) -> Reading:
        return msgspec.structs.replace(self._guard, alpha=alpha).read()


def _users(compared: Comparison) -> tuple[int, int]:
    return compared.candidate.num_clusters, compared.stable.num_clusters


def _ttft(seen: Observation) -> float | None:
    """What was cut off before its first token has waited for it until then."""
    return seen.latency if seen.ttft is None and seen.is_cut_off else seen.ttft


_MADE_BY: dict[GuardName, Callable[[float], _Guard]] = {
    "max_error_rate": _ErrorRate,
    "max_error_increase": _ErrorIncrease,
    "max_latency_ratio": partial(_Ratio, lambda seen: seen.latency),
    "max_ttft_ratio": partial(_Ratio, _ttft),
}
