"""One rollout: which users get the candidate, and when that changes. Knows no model and no clock.

running <-> paused, and from either to promoted, rolled_back or aborted, where it ends.

Each stage begins with new guards, and so does the stage that ran when the server restarted: how
often these err is told in `watch`, and a stage that began twice counts twice.

While paused, its users keep the candidate and guards may still send it back, but no stage ends.
"""

from headrace.errors import ConflictError
from headrace.routing.observation import Observation
from headrace.routing.rollouts.assignment import place_of
from headrace.routing.rollouts.decision import OVER, Decision, Ending, Kind, Numbers, State
from headrace.routing.rollouts.last_requests import LastRequests
from headrace.routing.rollouts.plan import ALL, Plan
from headrace.routing.rollouts.record import Record
from headrace.routing.rollouts.shadow import Shadow
from headrace.routing.rollouts.stage import Stage, worse

INTERVAL = 5.0  # seconds between two looks
MAX_DECISIONS = 200  # that are told of; all but the first make room


class Rollout:
    """Times are Unix times, given by who calls."""

    def __init__(
        self, record: Record, decisions: list[Decision], now: float, *, interval: float = INTERVAL
    ) -> None:
        self.id = record.id
        self.plan = record.plan
        self.stable = record.stable
        self.state: State = record.state
        self.created_at = record.created_at
        self.ended_at = record.ended_at
        self.is_promoting = False
        """The swap to the candidate is under way."""
        self.waiting_for: list[str] = []
        """What the stage still has to know, though it was held for long enough."""
        self.shadow = Shadow()
        self.unsaved: list[Decision] = []
        """Whoever writes them down takes them away."""
        self._decisions = decisions
        self._last = LastRequests()
        self._interval = interval
        self.stage = Stage(record.plan, record.stage, now)

    @classmethod
    def begin(
        cls, rollout_id: str, plan: Plan, stable: str, now: float, *, interval: float = INTERVAL
    ) -> "Rollout":
        record = Record(id=rollout_id, plan=plan, stable=stable, created_at=now)
        rollout = cls(record, [], now, interval=interval)
        rollout._decide("started", now, f"{plan.candidate} beside {stable}")
        return rollout

    @classmethod
    def restore(
        cls, record: Record, decisions: list[Decision], now: float, *, interval: float = INTERVAL
    ) -> "Rollout":
        """As a life before left it; a stage that ran begins anew, without what it had seen."""
        rollout = cls(record, decisions, now, interval=interval)
        if rollout.state == "paused":
            rollout.stage.pause(now)
        if not rollout.is_over:
            rollout._decide("restarted", now, "the server restarted: the stage begins anew")
        return rollout

    # What it is

    @property
    def record(self) -> Record:
        return Record(
            id=self.id,
            plan=self.plan,
            stable=self.stable,
            state=self.state,
            stage=self.stage.number,
            created_at=self.created_at,
            ended_at=self.ended_at,
        )

    @property
    def decisions(self) -> list[Decision]:
        """The oldest first."""
        return list(self._decisions)

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def stage_percent(self) -> float:
        """Of the users that have the candidate."""
        if self.is_over:
            return ALL if self.state == "promoted" else 0.0
        return self.stage.percent

    # Requests

    def takes(self, user: str) -> bool:
        """Whether this user gets the candidate; the request's own id where nobody is named."""
        return not self.is_over and place_of(self.id, user) * ALL < self.stage_percent

    def mirrors(self, request_id: str) -> bool:
        """Whether a request of the stable version is shown to the candidate as well."""
        place = place_of(f"shadow {self.id}", request_id)
        return not self.is_over and place * ALL < self.plan.shadow_percent

    def open(self, *, stage: int) -> None:
        """A request that counts has begun; `close` is told when it has ended, however it did."""
        if stage == self.stage.number:
            self.stage.num_open += 1

    def close(self, *, stage: int) -> None:
        if stage == self.stage.number:
            self.stage.num_open -= 1

    def observe(
        self, seen: Observation, *, candidate: bool, stage: int, is_counted: bool = True
    ) -> None:
        """`stage` is that in which the request was assigned: of another split it says nothing."""
        if self.is_over:
            return
        self._last.add(seen, candidate=candidate)
        if is_counted and stage == self.stage.number:
            self.stage.watch.add(seen, candidate=candidate)

    # Decisions

    def evaluate(self, now: float) -> Decision | None:
        """Look, if it is time to: send the candidate back, go on, or see the last stage passed."""
        if self.is_over or self.is_promoting:
            return None
        if self._last.is_broken:
            reason = "more than half of the candidate's last requests failed"
            return self._end("rolled_back", now, reason, self.stage.look())
        if not self.stage.take_turn(now, self._interval):
            return None
        return self._look(now, self.stage.look())

    def candidate_failed(self, now: float, reason: str) -> Decision:
        return self._end("rolled_back", now, reason)

    def pause(self, now: float, reason: str) -> Decision:
        self._require("running")
        self.state = "paused"
        self.stage.pause(now)
        return self._decide("paused", now, reason)

    def resume(self, now: float, reason: str) -> Decision:
        self._require("paused")
        self.state = "running"
        self.stage.resume(now)
        return self._decide("resumed", now, reason)

    def abort(self, now: float, reason: str) -> Decision:
        self._require("running", "paused")
        return self._end("aborted", now, reason)

    def begin_promotion(self) -> None:
        """Whoever swaps says so first, and afterwards how it ended."""
        self._require("running", "paused")
        self.is_promoting = True

    def leave_promotion(self) -> None:
        """Whoever asked for it is told that the swap was refused; nothing has changed."""
        self.is_promoting = False

    def promoted(self, now: float, reason: str) -> Decision:
        return self._end("promoted", now, reason, self.stage.look())

    def not_promoted(self, now: float, reason: str) -> Decision:
        """The swap that nobody asked for was refused: somebody has to say what to do.

        Meanwhile not everybody is left to a version that is not the active one.
        """
        self.is_promoting = False
        self.state = "paused"
        if self.stage.percent == ALL:
            self.stage = Stage(self.plan, self.stage.number - 1, now)
        self.stage.pause(now)
        return self._decide("paused", now, f"the swap was refused: {reason}")

    # Parts

    def _look(self, now: float, numbers: dict[str, Numbers]) -> Decision | None:
        if over := worse(numbers):
            return self._end("rolled_back", now, f"over the limit: {', '.join(over)}", numbers)
        if not self.stage.is_long_enough(now):
            return None
        self.waiting_for = self.stage.settle()
        if not self.waiting_for:
            return self._go_on(now, numbers)
        if self.stage.is_too_long(now) and not self.stage.is_stalled:
            self.stage.is_stalled = True
            reason = f"too little is known to go on: {'; '.join(self.waiting_for)}"
            return self._decide("stalled", now, reason, numbers)
        return None

    def _go_on(self, now: float, numbers: dict[str, Numbers]) -> Decision:
        if self.stage.is_last:
            self.is_promoting = True
            return self._decide("passed", now, "the last stage is passed", numbers)
        self.stage = Stage(self.plan, self.stage.number + 1, now)
        return self._decide("advanced", now, "every guard says fine", numbers)

    def _end(
        self, state: Ending, now: float, reason: str, numbers: dict[str, Numbers] | None = None
    ) -> Decision:
        assert not self.is_over, f"{self.state} before it was {state}"
        decision = self._decide(state, now, reason, numbers)
        self.state, self.ended_at = state, now
        self.is_promoting, self.waiting_for = False, []
        return decision

    def _decide(
        self, kind: Kind, now: float, reason: str, numbers: dict[str, Numbers] | None = None
    ) -> Decision:
        decision = Decision(
            at=now,
            kind=kind,
            stage_percent=self.stage.percent,
            reason=reason,
            numbers=numbers or {},
        )
        self._decisions.append(decision)
        del self._decisions[1 : 1 + max(0, len(self._decisions) - MAX_DECISIONS)]
        self.unsaved.append(decision)
        return decision

    def _require(self, *states: State) -> None:
        if self.is_promoting:
            raise ConflictError(f"rollout {self.id} is being promoted at this moment")
        if self.state not in states:
            raise ConflictError(f"rollout {self.id} is {self.state}")
