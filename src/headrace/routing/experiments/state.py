"""What a person needs to decide an experiment. Plain values, in the words of the API."""

from typing import Literal

import msgspec

from headrace.routing.experiments.plan import MetricName

Phase = Literal["running", "concluded"]


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """Over `count` requests. The true mean lies from `low` to `high`, at every look at once.

    Without requests there is no mean, before `min_samples` no interval.
    """

    count: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A variant's mean less the control's, of the metric that decides.

    `p_value` may be read at any time; there is none before `min_samples`. `fixed_p_value` holds for
    who planned a number of requests and looks once, then. Both are adjusted for the number of
    variants; the interval is so wide that all of them hold together.
    """

    difference: float | None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    fixed_p_value: float


class VariantState(msgspec.Struct, frozen=True, kw_only=True):
    """One version so far; the first of an experiment, the control, has no `comparison`.

    `num_diverted` requests of its users went to the active version, as it could not answer: they
    are failures of this one in `success`, and not in `num_requests`. `latency` (seconds) and
    `tokens` are those of answers that did not fail.
    """

    model_id: str
    weight: float
    num_requests: int
    num_diverted: int
    success: Mean
    latency: Mean
    tokens: Mean
    feedback: Mean
    comparison: Difference | None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look: `better` is the version that this look alone finds, `waiting_for` what it lacks."""

    variants: tuple[VariantState, ...]
    better: str | None
    waiting_for: str | None


class ExperimentState(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment; times are Unix times.

    `winner` was found at `decided_at` and stays what it is. `promoted` became the active version by
    the word of `concluded_by`, whoever won. `problem` is why a winner could not be promoted yet.
    """

    experiment_id: str
    name: str
    state: Phase
    metric: MetricName
    alpha: float
    min_samples: int
    promote_winner: bool
    started_at: float
    ended_at: float | None
    variants: tuple[VariantState, ...]
    waiting_for: str | None
    winner: str | None
    decided_at: float | None
    promoted: str | None
    concluded_by: str | None
    problem: str | None
