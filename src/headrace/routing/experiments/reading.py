"""Looks at the samples of all variants: means, intervals, p-values, and who is better.

Pure, but slow: milliseconds a variant, and scipy to import. For a thread.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

from headrace.routing.experiments.metrics import METRICS, MORE_IS_BETTER, Measured
from headrace.routing.experiments.plan import MetricName, Plan
from headrace.routing.experiments.samples import Samples, Values
from headrace.routing.experiments.state import Difference, Mean, Reading, VariantState
from headrace.routing.stats import mixture
from headrace.routing.stats.comparison import MIN_CLUSTERS
from headrace.routing.stats.estimate import Estimate
from headrace.routing.stats.fixed_horizon import holm, two_proportion_z_test, welch_t_test
from headrace.routing.stats.proportions import Rate


def read(plan: Plan, samples: Sequence[Samples]) -> Reading:
    """Compare each variant with the first, with alpha shared among all that do."""
    decisive = [_values(each, plan.metric) for each in samples]
    estimates = [METRICS[plan.metric].estimate(values) for values in decisive]
    comparisons = _compare(plan, decisive, estimates)
    variants = tuple(
        VariantState(
            model_id=variant.model_id,
            weight=variant.weight,
            num_requests=each.num_requests,
            num_diverted=each.num_diverted,
            **_means(plan, each),
            comparison=comparison,
        )
        for variant, each, comparison in zip(
            plan.variants, samples, [None, *comparisons], strict=True
        )
    )
    return Reading(
        variants=variants,
        better=_better(plan, comparisons, [estimate.value for estimate in estimates]),
        waiting_for=_waiting_for(plan, decisive),
    )


def _compare(
    plan: Plan, decisive: Sequence[Values], estimates: Sequence[Estimate]
) -> list[Difference]:
    """Holm's adjustment holds together whatever the tests have in common, as here a control."""
    control, *others = decisive
    pairs = [_Pair(plan, estimates, i) for i in range(1, len(estimates))]
    are_enough = [_are_enough(plan, control) and _are_enough(plan, each) for each in others]
    any_time = holm(
        [
            pair.p_value if is_enough else 1.0
            for pair, is_enough in zip(pairs, are_enough, strict=True)
        ]
    )
    fixed = holm([_fixed_p_value(plan.metric, control, each) for each in others])
    return [
        pair.difference(any_time[i] if are_enough[i] else None, fixed[i])
        for i, pair in enumerate(pairs)
    ]


class _Pair:
    """One variant and the control."""

    def __init__(self, plan: Plan, estimates: Sequence[Estimate], number: int) -> None:
        control = estimates[0]
        self._difference = estimates[number].minus(control)
        self._effect = METRICS[plan.metric].effect(control.value)
        self._alpha = plan.alpha / (len(estimates) - 1)  # of an interval that holds with all others

    @property
    def p_value(self) -> float:
        return mixture.p_value(self._difference, self._effect)

    def difference(self, p_value: float | None, fixed_p_value: float) -> Difference:
        low, high = None, None
        if p_value is not None:
            low, high = mixture.interval(self._difference, self._effect, self._alpha)
        is_known = isfinite(self._difference.variance)
        return Difference(
            difference=self._difference.value if is_known else None,
            low=low,
            high=high,
            p_value=p_value,
            fixed_p_value=fixed_p_value,
        )


def _better(plan: Plan, comparisons: Sequence[Difference], means: Sequence[float]) -> str | None:
    """The best of those that beat the control; the control where it beats all of them."""
    sign = 1 if MORE_IS_BETTER[plan.metric] else -1
    found = [sign * _found(each, plan.alpha) for each in comparisons]
    beating = [i for i, gain in enumerate(found, start=1) if gain > 0]
    if beating:
        best = max(beating, key=lambda i: sign * means[i])
        return plan.variants[best].model_id
    return plan.variants[0].model_id if all(gain < 0 for gain in found) else None


def _found(comparison: Difference, alpha: float) -> float:
    """The difference, if there is one beyond chance."""
    if comparison.difference is None or comparison.p_value is None:
        return 0.0
    return comparison.difference if comparison.p_value <= alpha else 0.0


def _means(plan: Plan, samples: Samples) -> Mapping[str, Mean]:
    return {name: _mean(plan, samples, name) for name in METRICS}


def _mean(plan: Plan, samples: Samples, name: Measured) -> Mean:
    metric, values = METRICS[name], _values(samples, name)
    count = values.moments.count
    if not count:
        return Mean(count=0)
    estimate = metric.estimate(values)
    if not _are_enough(plan, values):
        return Mean(count=count, mean=estimate.value)
    low, high = mixture.interval(estimate, metric.effect(estimate.value), plan.alpha)
    highest = 1.0 if metric.is_share else high
    return Mean(count=count, mean=estimate.value, low=max(0.0, low), high=min(high, highest))


def _values(samples: Samples, name: Measured) -> Values:
    values: Values = getattr(samples, name)
    return values


def _fixed_p_value(metric: MetricName, one: Values, other: Values) -> float:
    if metric == "success":
        return two_proportion_z_test(_failures(one), _failures(other))
    return welch_t_test(one.moments, other.moments)


def _failures(successes: Values) -> Rate:
    count = successes.moments.count
    return Rate(count - round(sum(successes.clusters.totals)), count)


def _are_enough(plan: Plan, values: Values) -> bool:
    is_sampled = values.moments.count >= plan.min_samples
    return is_sampled and values.clusters.num_clusters >= MIN_CLUSTERS


def _waiting_for(plan: Plan, decisive: Sequence[Values]) -> str | None:
    """What the first variant lacks that lacks something."""
    for variant, values in zip(plan.variants, decisive, strict=True):
        if values.moments.count < plan.min_samples:
            count = f"{values.moments.count} of {plan.min_samples}"
            return f"{variant.model_id} has {count} samples of {plan.metric}"
        if not _are_enough(plan, values):
            users = values.clusters.num_clusters
            return f"{variant.model_id} was asked by {users} of {MIN_CLUSTERS} users"
    return None
