from typing import Any

import numpy as np
import pytest

from headrace.routing.experiments.plan import MetricName, Plan, Variant
from headrace.routing.experiments.reading import read
from headrace.routing.experiments.samples import Samples
from headrace.routing.experiments.state import Difference, Reading, VariantState
from headrace.routing.observation import Observation
from headrace.routing.stats.fixed_horizon import two_proportion_z_test, welch_t_test
from headrace.routing.stats.moments import Moments
from headrace.routing.stats.proportions import Rate


def plan(metric: MetricName = "success", versions: int = 2, **fields: Any) -> Plan:
    variants = tuple(Variant(f"chat@{i}") for i in range(1, versions + 1))
    return Plan(name="chat", variants=variants, metric=metric, **{"min_samples": 100, **fields})


def seen(user: str = "ann", **fields: Any) -> Observation:
    known = {"failed": False, "ttft": 0.1, "latency": 1.0, "num_tokens": 10}
    return Observation(user=user, **{**known, **fields})


def succeeding(share: float, count: int = 1000, seed: int = 0) -> Samples:
    rng, samples = np.random.default_rng(seed), Samples()
    for i in range(count):
        samples.add(seen(f"{seed}-{i}", failed=bool(rng.random() > share)))
    return samples


def taking(seconds: float, count: int = 600, seed: int = 0) -> Samples:
    rng, samples = np.random.default_rng(seed), Samples()
    for i in range(count):
        samples.add(seen(f"{seed}-{i}", latency=float(seconds * rng.lognormal(0, 0.3))))
    return samples


def compared(reading: Reading, number: int = 1) -> Difference:
    comparison = reading.variants[number].comparison
    assert comparison is not None
    return comparison


def test_more_successes_win() -> None:
    reading = read(plan(), [succeeding(0.8), succeeding(0.95, seed=1)])
    control, variant = reading.variants
    found = compared(reading)
    assert reading.better == "chat@2"
    assert reading.waiting_for is None
    assert control.comparison is None
    assert found.difference == pytest.approx(variant.success.mean - control.success.mean)
    assert 0 < found.low < found.difference < found.high
    assert found.p_value < 0.001
    assert found.fixed_p_value < 0.001


def test_fewer_successes_leave_the_control() -> None:
    reading = read(plan(), [succeeding(0.95), succeeding(0.8, seed=1)])
    assert reading.better == "chat@1"
    assert compared(reading).high < 0


def test_less_latency_wins() -> None:
    reading = read(plan("latency"), [taking(1.0), taking(0.7, seed=1)])
    assert reading.better == "chat@2"
    assert compared(reading).high < 0


def test_what_is_alike_has_no_winner() -> None:
    reading = read(plan(), [succeeding(0.9), succeeding(0.9, seed=1)])
    found = compared(reading)
    assert reading.better is None
    assert found.low < 0 < found.high
    assert found.p_value > 0.05


def test_scores_are_compared_as_they_are_given() -> None:
    samples = [Samples(), Samples()]
    for i in range(400):
        samples[i % 2].add_score(f"{i}", 0.9 if i % 2 else 0.4)
    reading = read(plan("feedback"), samples)
    assert reading.better == "chat@2"
    assert reading.variants[1].feedback.mean == pytest.approx(0.9)
    assert compared(reading).fixed_p_value == 0.0  # no variance at all


def test_before_there_are_enough_there_is_no_p_value() -> None:
    reading = read(plan(), [succeeding(0.5, count=99), succeeding(1.0, seed=1)])
    found = compared(reading)
    assert reading.better is None
    assert reading.waiting_for == "chat@1 has 99 of 100 samples of success"
    assert (found.p_value, found.low, found.high) == (None, None, None)
    assert found.fixed_p_value < 0.001
    assert (reading.variants[0].success.low, reading.variants[0].success.mean) == (
        None,
        pytest.approx(0.5, abs=0.2),
    )


def test_a_few_users_are_not_enough_however_often_they_ask() -> None:
    samples = [Samples(), Samples()]
    for i in range(1000):
        samples[i % 2].add(seen(f"{i % 2}-{i % 10}", failed=i % 2 == 0))
    reading = read(plan(), samples)
    assert reading.better is None
    assert reading.waiting_for == "chat@1 was asked by 5 of 20 users"
    assert compared(reading).p_value is None


def test_without_requests_nothing_is_known() -> None:
    reading = read(plan("latency", versions=3), [Samples(), Samples(), Samples()])
    assert reading.waiting_for == "chat@1 has 0 of 100 samples of latency"
    for variant in reading.variants[1:]:
        assert variant.comparison == Difference(difference=None, fixed_p_value=1.0)
        assert variant.latency.mean is None


def test_a_failure_is_no_latency_and_no_tokens() -> None:
    samples = Samples()
    samples.add(seen(failed=True, latency=9.0, num_tokens=99))
    samples.add(seen(latency=1.0, num_tokens=None))
    variant: VariantState = read(plan(), [samples, Samples()]).variants[0]
    assert variant.num_requests == 2
    assert (variant.success.count, variant.success.mean) == (2, 0.5)
    assert (variant.latency.count, variant.latency.mean) == (1, 1.0)
    assert (variant.tokens.count, variant.tokens.mean) == (0, None)


def test_of_those_that_beat_the_control_the_best_wins() -> None:
    samples = [succeeding(0.7), succeeding(0.85, seed=1), succeeding(0.95, seed=2)]
    assert read(plan(versions=3), samples).better == "chat@3"


def test_the_control_wins_only_against_all() -> None:
    worse, alike = succeeding(0.7, seed=1), succeeding(0.95, seed=2)
    assert read(plan(versions=3), [succeeding(0.95), worse, alike]).better is None
    worse_too = succeeding(0.7, seed=2)
    assert read(plan(versions=3), [succeeding(0.95), worse, worse_too]).better == "chat@1"


def test_among_more_variants_a_p_value_must_be_smaller() -> None:
    control, variant, alike = (succeeding(p, seed=i) for i, p in enumerate((0.9, 0.94, 0.9)))
    alone = compared(read(plan(), [control, variant]))
    among = compared(read(plan(versions=3), [control, variant, alike]))
    assert among.p_value == pytest.approx(2 * alone.p_value)
    assert among.fixed_p_value == pytest.approx(2 * alone.fixed_p_value)
    assert among.low < alone.low
    assert alone.high < among.high


def test_the_fixed_reading_is_that_of_the_textbook() -> None:
    samples = [Samples(), Samples()]
    for i in range(200):
        samples[i % 2].add(seen(f"{i}", failed=i % 20 == 0, latency=1 + i % 7))
    z = compared(read(plan("success"), samples)).fixed_p_value
    assert z == two_proportion_z_test(Rate(10, 100), Rate(0, 100))
    moments = [Moments(), Moments()]
    for i in range(200):
        if i % 20:
            moments[i % 2].add(1 + i % 7)
    t = compared(read(plan("latency"), samples)).fixed_p_value
    assert t == pytest.approx(welch_t_test(*moments))


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    (control, variant) = read(plan(), [succeeding(1.0), succeeding(0.0, seed=1)]).variants
    assert control.success.high == 1.0
    assert variant.success.low == 0.0
    assert control.latency.low > 0
