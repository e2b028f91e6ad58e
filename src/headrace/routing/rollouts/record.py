"""What must be known of a rollout to go on with it in another life of the server."""

import msgspec

from headrace.routing.rollouts.decision import State
from headrace.routing.rollouts.plan import Plan


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`stable` is the version that was active when it began; times are Unix times."""

    id: str
    plan: Plan
    stable: str
    state: State = "running"
    stage: int = 0
    created_at: float
    ended_at: float | None = None
