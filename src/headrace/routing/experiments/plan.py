"""What an experiment is asked to find out. Knows no versions but their names."""

import re
from math import inf, isfinite
from typing import Literal, get_args

import msgspec

from headrace.errors import InvalidRequestError

MetricName = Literal["success", "latency", "feedback"]
METRIC_NAMES: tuple[MetricName, ...] = get_args(MetricName)

DEFAULT_ALPHA = 0.05
DEFAULT_MIN_SAMPLES = 500
MAX_ALPHA = 0.5
MAX_VARIANTS = 16
MAX_MIN_SAMPLES = 10**9
_VERSION = "@[1-9][0-9]*"


class Variant(msgspec.Struct, frozen=True):
    """A version with its part of the users, in any unit."""

    model_id: str
    weight: float = 1.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One question about the versions of a name; the first variant is what others compare with.

    InvalidRequestError names the field that makes no sense.
    """

    name: str
    variants: tuple[Variant, ...]
    metric: MetricName
    alpha: float = DEFAULT_ALPHA
    min_samples: int = DEFAULT_MIN_SAMPLES
    promote_winner: bool = False

    def __post_init__(self) -> None:
        names = ", ".join(METRIC_NAMES)
        _require(self.metric in METRIC_NAMES, "metric", f"one of {names}", self.metric)
        _require(0 < self.alpha <= MAX_ALPHA, "alpha", f"above 0, up to {MAX_ALPHA:g}", self.alpha)
        _require(
            1 <= self.min_samples <= MAX_MIN_SAMPLES,
            "min_samples",
            f"1 to {MAX_MIN_SAMPLES}",
            self.min_samples,
        )
        _require(
            2 <= len(self.variants) <= MAX_VARIANTS,  # noqa: PLR2004 - one has nothing beside it
            "variants",
            f"2 to {MAX_VARIANTS} versions",
            len(self.variants),
        )
        self._check_weights()
        self._check_versions()

    @property
    def model_ids(self) -> list[str]:
        return [variant.model_id for variant in self.variants]

    def _check_weights(self) -> None:
        for i, variant in enumerate(self.variants):
            is_finite = isfinite(variant.weight)
            _require(
                variant.weight >= 0 and is_finite,
                f"variants.{i}.weight",
                "0 or more",
                variant.weight,
            )
        total = sum(variant.weight for variant in self.variants)
        _require(total > 0, "variants", "weights with a sum above 0", total)
        _require(total < inf, "variants", "weights with a finite sum", total)
        for i, variant in enumerate(self.variants):
            # Without users it would never be compared, and nobody would win.
            _require(variant.weight > 0, f"variants.{i}.weight", "above 0", variant.weight)

    def _check_versions(self) -> None:
        for i, model_id in enumerate(self.model_ids):
            field = f"variants.{i}.model_id"
            is_version = re.fullmatch(re.escape(self.name) + _VERSION, model_id) is not None
            _require(is_version, field, f"a version of {self.name}", model_id)
            _require(model_id not in self.model_ids[:i], field, "each version only once", model_id)


def _require(is_so: bool, field: str, expected: str, got: object) -> None:  # noqa: FBT001 - a fact
    if not is_so:
        words = f"{got:g}" if isinstance(got, float) else str(got)[:80]
        raise InvalidRequestError(f"{field}: expected {expected}, got {words}.", param=field)
