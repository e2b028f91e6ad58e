"""What a server tells of a rollout: made by the server's own parts."""

from typing import Any

import msgspec

from headrace.api.rollouts.schema import RolloutList, state_of, summary_of
from headrace.routing.observation import Observation
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import Rollout

BEGAN = 1_700_000_000.0


def rollout(rollout_id: str = "r1", **fields: Any) -> Rollout:
    guards = Guards(max_error_rate=0.02, max_latency_ratio=1.2)
    known = {"name": "chat", "candidate": "chat@2", "guards": guards, "shadow_percent": 1.0}
    return Rollout.begin(rollout_id, Plan(**{**known, **fields}), "chat@1", BEGAN)


def used(made: Rollout, count: int = 200) -> Rollout:
    """Both versions have answered; of the candidate's every tenth answer fails."""
    for i in range(count):
        candidate = i % 2 == 0
        seen = Observation(
            user=f"u{i}",
            failed=candidate and i % 20 == 0,
            ttft=0.1,
            latency=1 + i % 3,
            num_tokens=9,
        )
        made.observe(seen, candidate=candidate, stage=made.stage.number)
    made.stage.look()
    return made


def told(made: Rollout, seconds: float = 10.0) -> bytes:
    return msgspec.json.encode(state_of(made, BEGAN + seconds))


def listed(*made: Rollout) -> bytes:
    return msgspec.json.encode(RolloutList([summary_of(each) for each in made]))
