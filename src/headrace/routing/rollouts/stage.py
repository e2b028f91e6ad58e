"""One stage of a rollout: for how long it has been held, and what its guards know.

An answer is known when it ends, so a slow one is not among the first. Hence a stage ends in two
steps: once its guards say fine it settles, which is to count no request that comes from then on and
to wait for those that it has; when all have ended and the guards still say fine it is passed. What
counts is settled when a request begins, and so says nothing of how long it takes.
"""

from headrace.routing.rollouts.decision import Numbers
from headrace.routing.rollouts.plan import ALL, Plan
from headrace.routing.rollouts.waiting import waiting_for
from headrace.routing.rollouts.watch import Watch
from headrace.routing.stats.comparison import Verdict


class Stage:
    """Begins with nothing seen."""

    def __init__(self, plan: Plan, number: int, now: float) -> None:
        self.number = number
        self.percent = plan.stages[number]
        self.is_last = number == len(plan.stages) - 1
        self.is_stalled = False
        self.is_settling = False
        self.num_open = 0
        """Requests that count and have not ended."""
        self.watch = Watch(plan.guards, num_stages=len(plan.stages), is_compared=self.percent < ALL)
        self._plan = plan
        self._began = now
        self._paused_at: float | None = None
        self._looked_at = now
        self.numbers = self.watch.read()
        """As the last look saw them."""

    def look(self) -> dict[str, Numbers]:
        self.numbers = self.watch.read()
        return self.numbers

    def settle(self) -> list[str]:
        """What it waits for, by its last look; passed if that is nothing."""
        lacking = waiting_for(self.numbers, self.watch.num_candidate)
        self.is_settling = not lacking
        if self.is_settling and self.num_open:
            return [f"{self.num_open} requests that have not ended"]
        return lacking

    def held_for(self, now: float) -> float:
        """Seconds, without pauses."""
        until = now if self._paused_at is None else self._paused_at
        return max(0.0, until - self._began)

    def is_long_enough(self, now: float) -> bool:
        return self._paused_at is None and self.held_for(now) >= self._plan.stage_seconds

    def is_too_long(self, now: float) -> bool:
        return self.held_for(now) >= self._plan.longest_stage

    def pause(self, now: float) -> None:
        """Its guards go on, and with them what counts."""
        self.is_settling = False
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is not None:
            self._began += max(0.0, now - self._paused_at)
            self._paused_at = None

    def take_turn(self, now: float, interval: float) -> bool:
        """Whether it is time to look again; a clock that was set back is no reason to wait."""
        if 0 <= now - self._looked_at < interval:
            return False
        self._looked_at = now
        return True


def worse(numbers: dict[str, Numbers]) -> list[str]:
    """The guards that found the candidate over their limit."""
    return [name for name, each in numbers.items() if each.verdict is Verdict.WORSE]
