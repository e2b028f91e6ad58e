"""The bodies of the experiments' routes. What they may say is checked by the plan of one."""

from typing import Annotated, cast

import msgspec
from msgspec import Meta

from headrace.api.models.schema import ModelId
from headrace.routing.experiments.plan import (
    DEFAULT_ALPHA,
    DEFAULT_MIN_SAMPLES,
    METRIC_NAMES,
    MetricName,
    Plan,
    Variant,
)
from headrace.routing.experiments.state import ExperimentState


class VariantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A version with its part of the users."""

    model_id: ModelId
    weight: Annotated[float, Meta(description="Above 0, in any unit.")] = 1.0


class ExperimentRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /api/v1/experiments`."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="A model's name.")]
    variants: Annotated[
        list[VariantRequest],
        Meta(description="At least two versions of it; others are compared with the first."),
    ]
    metric: Annotated[
        str,  # of which the plan says what it may be
        Meta(description="What decides.", extra_json_schema={"enum": list(METRIC_NAMES)}),
    ]
    alpha: Annotated[
        float, Meta(description="How often a winner may be found where there is none.")
    ] = DEFAULT_ALPHA
    min_samples: Annotated[
        int, Meta(description="Of the metric, for each variant, before there is a p-value.")
    ] = DEFAULT_MIN_SAMPLES
    promote_winner: Annotated[
        bool, Meta(description="Make the winner the active version as soon as it is found.")
    ] = False

    def plan(self) -> Plan:
        """InvalidRequestError names the field that makes no sense."""
        return Plan(
            name=self.name,
            variants=tuple(Variant(each.model_id, each.weight) for each in self.variants),
            metric=cast("MetricName", self.metric),
            alpha=self.alpha,
            min_samples=self.min_samples,
            promote_winner=self.promote_winner,
        )


class ConcludeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /api/v1/experiments/{experiment_id}/conclude`."""

    winner: Annotated[
        str | None, Meta(description="The version to be active; left out: the winner found.")
    ] = None


class ExperimentList(msgspec.Struct, frozen=True):
    """Every experiment that runs, and the last that were concluded; the newest first."""

    experiments: list[ExperimentState]


class FeedbackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /api/v1/feedback`."""

    request_id: Annotated[
        str, Meta(min_length=1, max_length=256, description="An answer's X-Request-ID.")
    ]
    score: Annotated[
        float, Meta(ge=0, le=1, description="From 0, useless, to 1, what it should be.")
    ]


class FeedbackAnswer(msgspec.Struct, frozen=True):
    """It counts."""

    request_id: str
    score: float
