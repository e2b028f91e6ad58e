"""The rollouts of a server: one at a time of a model. Knows of versions only what it is told.

A model that is changed by hand ends its rollout: promoted where the candidate was made active,
aborted where another version was.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import uuid4

from headrace.errors import ConflictError, InvalidRequestError, RolloutNotFoundError
from headrace.routing.observation import Observation
from headrace.routing.rollouts.choice import Choice
from headrace.routing.rollouts.decision import Decision
from headrace.routing.rollouts.plan import Plan
from headrace.routing.rollouts.record import Record
from headrace.routing.rollouts.rollout import INTERVAL, Rollout
from headrace.routing.rollouts.shadow import Shadow

MAX_OVER = 100  # that are still told of


@dataclass(frozen=True, slots=True)
class Condition:
    """How a version is now; `reason` ends a sentence about it where it does not answer.

    One that is coming loads for the first time in this life of the server.
    """

    state: Literal["answering", "coming", "failed", "gone"]
    reason: str = ""


class Versions(Protocol):
    """What the registry knows."""

    def active(self, name: str) -> str | None:
        """The version that requests by name go to; None while there is none."""
        ...

    def condition(self, model_id: str) -> Condition: ...


class Rollouts:
    """Whoever evaluates saves what was decided, and swaps where a rollout is being promoted.

    `occupied` tells what else shares out the requests of a model, if anything does.
    """

    def __init__(
        self,
        versions: Versions,
        *,
        occupied: Callable[[str], str | None] = lambda _name: None,
        interval: float = INTERVAL,
    ) -> None:
        self._versions = versions
        self._occupied = occupied
        self._interval = interval
        self._rollouts: dict[str, Rollout] = {}
        self._running: dict[str, Rollout] = {}  # by the names of models

    # What there is

    def __iter__(self) -> Iterator[Rollout]:
        """The newest first."""
        return reversed(self._rollouts.values())

    def find(self, rollout_id: str) -> Rollout:
        if (rollout := self._rollouts.get(rollout_id)) is None:
            raise RolloutNotFoundError(f"there is no rollout {rollout_id[:80]!r}", param="id")
        return rollout

    def occupant(self, name: str) -> str | None:
        """What shares out the requests of this model now, in words."""
        rollout = self._running.get(name)
        return None if rollout is None or rollout.is_over else f"rollout {rollout.id}"

    # Beginnings

    def start(self, plan: Plan, now: float) -> Rollout:
        """InvalidRequestError names the field of a version that will not do."""
        stable = self._stable(plan)
        rollout = Rollout.begin(uuid4().hex, plan, stable, now, interval=self._interval)
        self._keep(rollout)
        return rollout

    def withdraw(self, rollout: Rollout) -> None:
        """One that could not be written down never was."""
        self._rollouts.pop(rollout.id, None)
        self._running.pop(rollout.plan.name, None)

    def restore(self, left: Iterable[tuple[Record, list[Decision]]], now: float) -> None:
        """What a life before wrote, the oldest first."""
        for record, decisions in left:
            self._keep(Rollout.restore(record, decisions, now, interval=self._interval))

    # Requests

    def choose(self, name: str, user: str | None, request_id: str) -> Choice | None:
        """Which version answers a request by name; None where no rollout has a say."""
        if (rollout := self._running.get(name)) is None or rollout.is_over:
            return None
        candidate = rollout.plan.candidate
        if self._versions.condition(candidate).state != "answering":
            return None  # the next look ends it, or it is loading after a restart
        is_candidate = rollout.takes(user or request_id)
        is_mirrored = not is_candidate and rollout.mirrors(request_id)
        return Choice(
            rollout_id=rollout.id,
            model=candidate if is_candidate else name,
            is_candidate=is_candidate,
            stage=rollout.stage.number,
            is_counted=not rollout.stage.is_settling,
            shadow=candidate if is_mirrored else None,
        )

    def begin(self, choice: Choice) -> None:
        """A request goes to what was chosen; `end` is told of it in any case."""
        rollout = self._rollouts.get(choice.rollout_id)
        if rollout is not None and choice.is_counted:
            rollout.open(stage=choice.stage)

    def end(self, choice: Choice, answered_by: str, seen: Observation | None) -> None:
        """How a request that began ended, on whichever version; None says nothing of it.

        `answered_by` is `choice.model` where it came to none.
        """
        if (rollout := self._rollouts.get(choice.rollout_id)) is None:
            return
        if choice.is_counted:
            rollout.close(stage=choice.stage)
        meant = rollout.plan.candidate if choice.is_candidate else rollout.stable
        if seen is not None and answered_by in (meant, choice.model):
            rollout.observe(
                seen,
                candidate=choice.is_candidate,
                stage=choice.stage,
                is_counted=choice.is_counted,
            )

    def shadow(self, rollout_id: str) -> Shadow | None:
        """Where a rollout that is not long over keeps what mirrored requests showed."""
        rollout = self._rollouts.get(rollout_id)
        return None if rollout is None else rollout.shadow

    # Decisions

    def evaluate(self, now: float) -> list[Rollout]:
        """Let each decide; the answer is those that did.

        Where `is_promoting` has become true, whoever evaluates swaps, and tells the rollout.
        """
        self._running = {n: each for n, each in self._running.items() if not each.is_over}
        return [each for each in self._running.values() if self._judge(each, now) is not None]

    # Parts

    def _stable(self, plan: Plan) -> str:
        active = self._versions.active(plan.name)
        if active is None:
            raise InvalidRequestError(f"name: no model {plan.name[:80]!r} is served", param="name")
        if active == plan.candidate:
            raise _unfit(f"{plan.candidate} is active already")
        condition = self._versions.condition(plan.candidate)
        if condition.state != "answering":
            raise _unfit(f"{plan.candidate[:80]} {condition.reason}")
        other = self.occupant(plan.name) or self._occupied(plan.name)
        if other is not None:
            raise ConflictError(f"{plan.name}: {other} shares out its requests", param="name")
        return active

    def _judge(self, rollout: Rollout, now: float) -> Decision | None:
        if rollout.is_promoting:
            return None  # the pointer moves at this moment
        active, candidate = self._versions.active(rollout.plan.name), rollout.plan.candidate
        if active == candidate:
            return rollout.promoted(now, "it was made active by hand")
        if active is not None and active != rollout.stable:
            return rollout.abort(now, f"{active} was made active by hand")
        return self._judge_candidate(rollout, self._versions.condition(candidate), now)

    def _judge_candidate(self, rollout: Rollout, it: Condition, now: float) -> Decision | None:
        match it.state:
            case "answering":
                return rollout.evaluate(now)
            case "failed":
                return rollout.candidate_failed(now, f"{rollout.plan.candidate} {it.reason}")
            case "gone":
                return rollout.abort(now, f"{rollout.plan.candidate} {it.reason}")
            case "coming":
                return None

    def _keep(self, rollout: Rollout) -> None:
        self._rollouts[rollout.id] = rollout
        if not rollout.is_over:
            self._running[rollout.plan.name] = rollout
        over = [each for each in self._rollouts.values() if each.is_over]
        for oldest in over[: max(0, len(over) - MAX_OVER)]:
            del self._rollouts[oldest.id]


def _unfit(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"candidate: {message}", param="candidate")
