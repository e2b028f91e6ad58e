"""The rollouts of a server: candidates that take over by stages, as plain values."""

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack
from urllib.parse import quote

import msgspec

from headrace.client.connection import Connection, read
from headrace.routing.rollouts.decision import Decision, Numbers

_ROLLOUTS = "/api/v1/rollouts"


class Rollouts:
    """Everything that can be asked of a server's rollouts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> tuple["RolloutSummary", ...]:
        """The newest first."""
        return read(self._connection.ask("GET", _ROLLOUTS), _List).rollouts

    def get(self, rollout_id: str) -> "Rollout":
        return read(self._connection.ask("GET", _path(rollout_id)), Rollout)

    def start(self, name: str, candidate: str, **how: Unpack["RolloutOptions"]) -> "Rollout":
        """Begin to give a version users; what is left out is as the server has it."""
        said = {key: value for key, value in how.items() if value is not None}
        body = {"name": name, "candidate": candidate, **said}
        return read(self._connection.ask("POST", _ROLLOUTS, body), Rollout)

    def promote(self, rollout_id: str) -> "Rollout":
        """Make the candidate the active version now."""
        answer = self._connection.ask(
            "POST",
            f"{_path(rollout_id)}/promote",
            read_timeout=None,  # the candidate may have to be loaded first
        )
        return read(answer, Rollout)

    def pause(self, rollout_id: str) -> "Rollout":
        """Stay at this stage; what its guards find still sends the candidate back."""
        return self._do(rollout_id, "pause")

    def resume(self, rollout_id: str) -> "Rollout":
        return self._do(rollout_id, "resume")

    def abort(self, rollout_id: str) -> "Rollout":
        """Send every user back to the stable version."""
        return self._do(rollout_id, "abort")

    def _do(self, rollout_id: str, operation: str) -> "Rollout":
        return read(self._connection.ask("POST", f"{_path(rollout_id)}/{operation}"), Rollout)


class RolloutOptions(TypedDict, total=False):
    """How a rollout goes; None is as good as left out.

    `guards` are `max_error_rate`, `max_error_increase`, `max_latency_ratio`, `max_ttft_ratio`.
    """

    guards: Mapping[str, float]
    stages: Sequence[float] | None  # percent of users
    stage_seconds: float | None
    max_stage_seconds: float | None
    shadow_percent: float | None


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
    waiting_for: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """How answers to mirrored requests compare; latencies are means in seconds."""

    num_mirrored: int
    num_dropped: int
    num_failed: int
    num_greedy: int
    num_equal: int
    first_difference: float | None
    stable_latency: float | None
    candidate_latency: float | None
    stable_tokens: float | None
    candidate_tokens: float | None


class Rollout(RolloutSummary, frozen=True, kw_only=True):
    """One rollout; `numbers` are what the guards of its stage say, `decisions` the oldest first."""

    stages: tuple[float, ...]
    stage_seconds: float
    max_stage_seconds: float
    held_seconds: float
    guards: dict[str, float]
    num_candidate: int
    num_stable: int
    numbers: dict[str, Numbers]
    decisions: tuple[Decision, ...]
    shadow: Shadow | None = None


class _List(msgspec.Struct, frozen=True):
    rollouts: tuple[RolloutSummary, ...]


def _path(rollout_id: str) -> str:
    return f"{_ROLLOUTS}/{quote(rollout_id, '', errors='surrogateescape')}"
