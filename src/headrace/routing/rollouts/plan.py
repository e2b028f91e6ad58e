"""What a rollout is asked to do: how far, how long, and what it must not cost. Knows no version."""

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from typing import Literal

import msgspec

from headrace.errors import InvalidRequestError

GuardName = Literal["max_error_rate", "max_error_increase", "max_latency_ratio", "max_ttft_ratio"]

DEFAULT_STAGES = (5.0, 10.0, 25.0, 50.0, 100.0)
DEFAULT_STAGE_SECONDS = 300.0
MAX_STAGES = 20
MAX_SECONDS = 30 * 24 * 3600.0
LONGEST = 10.0  # times `stage_seconds`, where the longest is not said
ALL = 100.0  # percent


class Guards(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a candidate may be like at most; None is not looked at.

    `max_error_rate` is a share of its own requests, `max_error_increase` how much it may be over
    the stable version's share; ratios are of means, over the stable version's at the same time.
    """

    max_error_rate: float | None = None
    max_error_increase: float | None = None
    max_latency_ratio: float | None = None
    max_ttft_ratio: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self:
            is_ratio = name.endswith("_ratio")
            # What may cost nothing at all can never be shown to cost that little.
            is_in_range = isfinite(limit) and (limit > 1 if is_ratio else 0 < limit < 1)
            expected = "above 1" if is_ratio else "above 0 and below 1"
            _require(is_in_range, f"guards.{name}", expected, limit)

    def __iter__(self) -> Iterator[tuple[GuardName, float]]:
        """Those that are given."""
        names: tuple[GuardName, ...] = (
            "max_error_rate",
            "max_error_increase",
            "max_latency_ratio",
            "max_ttft_ratio",
        )
        for name in names:
            if (limit := getattr(self, name)) is not None:
                yield name, limit


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Stages are percent of users; each is held for `stage_seconds` at least.

    A stage that has lasted `max_stage_seconds` and still knows too little stays, and says so.
    InvalidRequestError names the field that makes no sense.
    """

    name: str
    candidate: str
    guards: Guards
    stages: tuple[float, ...] = DEFAULT_STAGES
    stage_seconds: float = DEFAULT_STAGE_SECONDS
    max_stage_seconds: float | None = None
    shadow_percent: float = 0.0

    def __post_init__(self) -> None:
        is_of_name = self.candidate.startswith(f"{self.name}@")
        _require(is_of_name, "candidate", f"a version of {self.name}", self.candidate)
        _require(any(self.guards), "guards", "at least one limit", "none")
        self._check_stages()
        self._check_seconds()
        _require(0 <= self.shadow_percent <= ALL, "shadow_percent", "0 to 100", self.shadow_percent)

    @property
    def longest_stage(self) -> float:
        if self.max_stage_seconds is None:
            return self.stage_seconds * LONGEST
        return self.max_stage_seconds

    def _check_stages(self) -> None:
        count = len(self.stages)
        _require(1 <= count <= MAX_STAGES, "stages", f"1 to {MAX_STAGES} of them", count)
        for i, percent in enumerate(self.stages):
            _require(0 < percent <= ALL, f"stages.{i}", "above 0, up to 100", percent)
        for i, (before, percent) in enumerate(pairwise(self.stages), 1):
            _require(before < percent, f"stages.{i}", f"more than the {before:g} before", percent)
        # With all users on the candidate there is nothing left to compare it with.
        _require(self.stages[0] < ALL, "stages.0", "below 100", self.stages[0])

    def _check_seconds(self) -> None:
        seconds, longest = self.stage_seconds, self.longest_stage
        _require(0 <= seconds <= MAX_SECONDS, "stage_seconds", f"0 to {MAX_SECONDS:g}", seconds)
        _require(
            seconds <= longest <= MAX_SECONDS * LONGEST,
            "max_stage_seconds",
            f"{seconds:g} (stage_seconds) to {MAX_SECONDS * LONGEST:g}",
            longest,
        )


def _require(is_so: bool, field: str, expected: str, got: object) -> None:  # noqa: FBT001 - a fact
    if not is_so:
        words = f"{got:g}" if isinstance(got, float) else str(got)[:80]
        raise InvalidRequestError(f"{field}: expected {expected}, got {words}.", param=field)
