"""Many experiments at once, looked at after every request, with the real formulas on arrays."""

from collections.abc import Callable

import numpy as np
import pytest

from headrace.routing.experiments.metrics import METRICS, of_shares
from headrace.routing.experiments.plan import MetricName
from headrace.routing.stats import mixture
from headrace.routing.stats.estimate import Estimate
from routing.stats.simulated import LOOKS, Array, after_every_request, on_arrays, running

Draw = Callable[[np.random.Generator, tuple[int, int]], Array]
Side = tuple[Estimate, Array]
"""Means after each request, and of how many."""


def on_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    on_arrays(monkeypatch, mixture, "log", "sqrt", "copysign")


def sides(
    variant: Draw, control: Draw, *, every: int, floor: int, streams: int
) -> tuple[Side, Side]:
    """One request in `every` goes to the variant, which is looked at from `floor` of them on."""
    rng = np.random.default_rng(20)
    of_variant = running(variant(rng, (streams, LOOKS // every)))
    of_control = running(control(rng, (streams, LOOKS - LOOKS // every)))
    both = after_every_request(of_variant, of_control, every)
    total = np.arange(every, LOOKS + 1)
    counts = total // every, total - total // every
    return tuple(
        (Estimate(*(part[:, (floor - 1) * every :] for part in mean)), count[(floor - 1) * every :])
        for mean, count in zip(both, counts, strict=True)
    )


def p_values(metric: MetricName, variant: Side, control: Side) -> Array:
    """Of each look, as a reading has them."""
    is_share = METRICS[metric].is_share
    one, other = (of_shares(*side) if is_share else side[0] for side in (variant, control))
    effect = METRICS[metric].effect(other.value)
    # mixture.p_value takes a minimum that arrays do not have
    return np.exp(-mixture._log_likelihood_ratio(one.minus(other), effect))


def naive_p_is_small(variant: Side, control: Side) -> Array:
    """What a test that is planned for one look says at each of them."""
    difference = variant[0].minus(control[0])
    with np.errstate(invalid="ignore"):
        return abs(difference.value) > 1.96 * np.sqrt(difference.variance)
