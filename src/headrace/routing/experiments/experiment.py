"""One experiment: who gets which version, what is known of them, and how it ended. Knows no clock.

running --conclude--> concluded
"""

from collections.abc import Sequence

import msgspec

from headrace.routing.experiments.assignment import Assignment
from headrace.routing.experiments.plan import Plan
from headrace.routing.experiments.samples import Samples
from headrace.routing.experiments.state import ExperimentState, Reading
from headrace.routing.observation import Observation

MAX_DIVERTED = 0.01  # share of its requests that a winner which is promoted may not have answered


class Found(msgspec.Struct, frozen=True):
    """The version that looks have found better, and when."""

    winner: str
    at: float


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What became the active version, by whose word, and the last look at the samples."""

    promoted: str
    by: str
    at: float
    reading: Reading


class Experiment:
    """Counts while it runs; once it is concluded only its conclusion is left.

    `active` is the version that was active when it began. `found` is the winner that a look has
    seen first: later looks would choose among chances.
    """

    def __init__(
        self,
        experiment_id: str,
        plan: Plan,
        started_at: float,
        *,
        active: str | None = None,
        samples: Sequence[Samples] = (),
        found: Found | None = None,
        conclusion: Conclusion | None = None,
    ) -> None:
        self.experiment_id = experiment_id
        self.plan = plan
        self.started_at = started_at
        self.active = active
        self.found = found
        self.conclusion = conclusion
        self.is_ending = False
        self.problem: str | None = None
        self.samples = dict(
            zip(plan.model_ids, samples or [Samples() for _ in plan.variants], strict=True)
        )
        self._assignment = Assignment(experiment_id, [each.weight for each in plan.variants])

    def variant_of(self, user: str) -> str:
        """The model id that a user gets, always the same."""
        return self.plan.variants[self._assignment.variant_of(user)].model_id

    def is_overruled(self, active: str | None) -> bool:
        """Whether somebody has made another version active meanwhile."""
        return None not in (active, self.active) and active != self.active

    def divert(self, model_id: str, user: str) -> None:
        """Count a request that this variant could not take."""
        self.samples[model_id].divert(user)

    def observe(self, model_id: str, seen: Observation) -> bool:
        """Count a request; False for one that is not of this experiment."""
        if self.conclusion is not None or self.variant_of(seen.user) != model_id:
            return False
        self.samples[model_id].add(seen)
        return True

    def add_score(self, model_id: str, user: str, score: float) -> None:
        assert self.conclusion is None, "what is concluded counts nothing more"
        self.samples[model_id].add_score(user, score)

    def doubt(self, winner: str) -> str | None:
        """Why this winner is promoted by a person's word alone."""
        samples = self.samples[winner]
        if samples.share_diverted <= MAX_DIVERTED:
            return None
        count = samples.num_requests + samples.num_diverted
        return (
            f"{winner} could not answer {samples.num_diverted:,} of its {count:,} requests; above"
            f" {MAX_DIVERTED:.0%} it is not promoted by itself."
        )

    def copies(self) -> dict[str, Samples]:
        """The samples as they are now, in the order of the variants."""
        return {model_id: samples.copy() for model_id, samples in self.samples.items()}

    def conclude(self, conclusion: Conclusion) -> None:
        assert self.conclusion is None, "an experiment ends once"
        self.conclusion = conclusion
        self.problem = None
        self.samples = {}

    def state(self, reading: Reading) -> ExperimentState:
        """With a look at its samples, or the last one there was."""
        end, plan = self.conclusion, self.plan
        return ExperimentState(
            experiment_id=self.experiment_id,
            name=plan.name,
            state="concluded" if end else "running",
            metric=plan.metric,
            alpha=plan.alpha,
            min_samples=plan.min_samples,
            promote_winner=plan.promote_winner,
            started_at=self.started_at,
            ended_at=end.at if end else None,
            variants=reading.variants,
            waiting_for=reading.waiting_for,
            winner=self.found.winner if self.found else None,
            decided_at=self.found.at if self.found else None,
            promoted=end.promoted if end else None,
            concluded_by=end.by if end else None,
            problem=self.problem,
        )
