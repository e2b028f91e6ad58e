"""What a rollout decided, or was told, with the numbers of that moment."""

from math import isfinite
from typing import Literal

import msgspec

from headrace.routing.stats.comparison import Reading, Verdict

Ending = Literal["promoted", "rolled_back", "aborted"]
State = Literal["running", "paused"] | Ending
Kind = Literal[
    "started",
    "restarted",
    "advanced",
    "stalled",
    "passed",
    "promoted",
    "rolled_back",
    "paused",
    "resumed",
    "aborted",
]

OVER: frozenset[State] = frozenset({"promoted", "rolled_back", "aborted"})


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard said: what it saw of both versions, and how far that is over its limit.

    A bound that is None is not known yet, and `stable` of what is not compared.
    """

    verdict: Verdict
    limit: float
    candidate: float
    stable: float | None
    excess: float
    lowest_excess: float | None
    highest_excess: float | None
    num_candidate: int
    num_stable: int
    num_candidate_users: int = 0
    num_stable_users: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is a Unix time, `numbers` are by the names of guards."""

    at: float
    kind: Kind
    stage_percent: float
    reason: str
    numbers: dict[str, Numbers] = {}


def numbers_of(
    strict: Reading, plain: Reading, limit: float, users: tuple[int, int], *, is_compared: bool
) -> Numbers:
    """The strict reading may send a candidate back, the plain one let it go on.

    `users` are the candidate's and the stable version's.
    """
    verdict = Verdict.FINE if plain.verdict is Verdict.FINE else Verdict.UNKNOWN
    return Numbers(
        verdict=Verdict.WORSE if strict.verdict is Verdict.WORSE else verdict,
        limit=limit,
        candidate=strict.candidate,
        stable=strict.stable if is_compared else None,
        excess=strict.excess,
        lowest_excess=_known(strict.lowest_excess),
        highest_excess=_known(plain.highest_excess),
        num_candidate=strict.num_candidate,
        num_stable=strict.num_stable,
        num_candidate_users=users[0],
        num_stable_users=users[1],
    )


def _known(bound: float) -> float | None:
    return bound if isfinite(bound) else None
