"""The bodies of the rollouts' routes. What they may say is checked by the plan of one."""

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.api.models.schema import ModelId
from headrace.routing.rollouts.decision import Decision, Numbers
from headrace.routing.rollouts.plan import DEFAULT_STAGE_SECONDS, DEFAULT_STAGES, Guards, Plan
from headrace.routing.rollouts.rollout import Rollout
from headrace.routing.rollouts.shadow import Shadow
from headrace.routing.stats.moments import Moments


class GuardsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What sends a candidate back. Ratios are over the stable version's mean at the same time."""

    max_error_rate: Annotated[
        float | None, Meta(description="Share of the candidate's requests that may fail.")
    ] = None
    max_error_increase: Annotated[
        float | None, Meta(description="How far that share may be over the stable version's.")
    ] = None
    max_latency_ratio: Annotated[float | None, Meta(description="Of whole answers; above 1.")] = (
        None
    )
    max_ttft_ratio: Annotated[float | None, Meta(description="Of first tokens; above 1.")] = None


class RolloutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /api/v1/rollouts`."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="A model's name.")]
    candidate: ModelId
    guards: GuardsRequest
    stages: Annotated[
        list[float], Meta(description="Percent of users, rising; the first below 100.")
    ] = msgspec.field(default_factory=lambda: list(DEFAULT_STAGES))
    stage_seconds: Annotated[float, Meta(description="How long each is held at least.")] = (
        DEFAULT_STAGE_SECONDS
    )
    max_stage_seconds: Annotated[
        float | None, Meta(description="When a stage says that it waits; left out: 10 times that.")
    ] = None
    shadow_percent: Annotated[
        float, Meta(description="Of the stable version's requests, shown to the candidate too.")
    ] = 0.0

    def plan(self) -> Plan:
        """InvalidRequestError names the field that makes no sense."""
        return Plan(
            name=self.name,
            candidate=self.candidate,
            guards=Guards(**msgspec.structs.asdict(self.guards)),
            stages=tuple(self.stages),
            stage_seconds=self.stage_seconds,
            max_stage_seconds=self.max_stage_seconds,
            shadow_percent=self.shadow_percent,
        )


class ShadowState(msgspec.Struct, frozen=True, kw_only=True):
    """How answers to mirrored requests compare, since the server started; means are in seconds."""

    num_mirrored: int
    num_dropped: int
    num_failed: int
    num_greedy: int
    num_equal: int
    first_difference: float | None
    """Mean characters before it, of greedy answers that differ."""
    stable_latency: float | None
    candidate_latency: float | None
    stable_tokens: float | None
    candidate_tokens: float | None


class RolloutSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rollout is; times are Unix times."""

    rollout_id: str
    name: str
    stable: str
    candidate: str
    state: str
    stage_percent: float
    created_at: float
    ended_at: float | None
    waiting_for: list[str]


class RolloutState(RolloutSummary, frozen=True, kw_only=True):
    """All that a person needs to decide: `numbers` are the last look's, of the stage that runs."""

    stages: tuple[float, ...]
    stage_seconds: float
    max_stage_seconds: float
    held_seconds: float
    guards: Guards
    num_candidate: int
    num_stable: int
    num_candidate_left: int
    """Whose client did not wait for them."""
    num_stable_left: int
    numbers: dict[str, Numbers]
    decisions: list[Decision]
    shadow: ShadowState | None


class RolloutList(msgspec.Struct, frozen=True):
    """Every rollout that runs, and the last that ended; the newest first."""

    rollouts: list[RolloutSummary]


def summary_of(rollout: Rollout) -> RolloutSummary:
    return RolloutSummary(
        rollout_id=rollout.id,
        name=rollout.plan.name,
        stable=rollout.stable,
        candidate=rollout.plan.candidate,
        state=rollout.state,
        stage_percent=rollout.stage_percent,
        created_at=rollout.created_at,
        ended_at=rollout.ended_at,
        waiting_for=rollout.waiting_for,
    )


def state_of(rollout: Rollout, now: float) -> RolloutState:
    plan, stage = rollout.plan, rollout.stage
    return RolloutState(
        **msgspec.structs.asdict(summary_of(rollout)),
        stages=plan.stages,
        stage_seconds=plan.stage_seconds,
        max_stage_seconds=plan.longest_stage,
        held_seconds=stage.held_for(rollout.ended_at or now),
        guards=plan.guards,
        num_candidate=stage.watch.num_candidate,
        num_stable=stage.watch.num_stable,
        num_candidate_left=stage.watch.num_candidate_left,
        num_stable_left=stage.watch.num_stable_left,
        numbers=stage.numbers,
        decisions=rollout.decisions,
        shadow=_shadow(rollout.shadow) if plan.shadow_percent else None,
    )


def _shadow(shadow: Shadow) -> ShadowState:
    return ShadowState(
        num_mirrored=shadow.num_mirrored,
        num_dropped=shadow.num_dropped,
        num_failed=shadow.num_failed,
        num_greedy=shadow.num_greedy,
        num_equal=shadow.num_equal,
        first_difference=_mean(shadow.first_difference),
        stable_latency=_mean(shadow.stable_latency),
        candidate_latency=_mean(shadow.candidate_latency),
        stable_tokens=_mean(shadow.stable_tokens),
        candidate_tokens=_mean(shadow.candidate_tokens),
    )


def _mean(moments: Moments) -> float | None:
    return moments.mean if moments.count else None
