import pytest

from headrace.routing.rollouts.plan import Guards
from headrace.routing.rollouts.watch import ALPHA
from routing.rollouts.simulated import plan_of, run

GUARDS = Guards(max_error_increase=0.01, max_latency_ratio=1.2, max_ttft_ratio=1.2)
NUM_RUNS = 100

pytestmark = pytest.mark.slow


def test_a_candidate_that_is_the_stable_version_is_rarely_sent_back() -> None:
    """With a look at every 100 requests."""
    plan = plan_of(GUARDS, (20.0, 50.0, 100.0))
    runs = [run(plan, seed, num_requests=1500, every=100) for seed in range(NUM_RUNS)]
    assert sum(rollout.state == "rolled_back" for rollout, _ in runs) <= ALPHA * NUM_RUNS


def test_a_candidate_at_the_limit_rarely_passes_a_stage() -> None:
    guards = Guards(max_latency_ratio=1.2, max_error_rate=0.05)
    rates, latencies = (0.001, 0.001), (1.0, 1.2)
    passed = 0
    for seed in range(NUM_RUNS):
        rollout, _ = run(
            plan_of(guards, (50.0, 90.0, 100.0)),
            seed,
            num_requests=2000,
            every=100,
            error_rates=rates,
            latencies=latencies,
        )
        passed += rollout.stage.number > 0
    assert passed <= ALPHA * NUM_RUNS


@pytest.mark.parametrize(
    ("error_rates", "latencies", "num_requests"),
    [
        pytest.param((0.01, 0.10), (1.0, 1.0), 6000, id="errors of 10 instead of 1 %"),
        pytest.param((0.01, 0.01), (1.0, 1.5), 3000, id="latency half as much again"),
        pytest.param((0.01, 0.80), (1.0, 0.1), 400, id="most requests fail"),
    ],
)
def test_a_candidate_that_is_worse_is_sent_back_at_ten_percent(
    error_rates: tuple[float, float], latencies: tuple[float, float], num_requests: int
) -> None:
    num_runs = 20
    runs = [
        run(
            plan_of(GUARDS),
            seed,
            num_requests=num_requests,
            every=100,
            error_rates=error_rates,
            latencies=latencies,
        )
        for seed in range(num_runs)
    ]
    sent_back = [rollout for rollout, _ in runs if rollout.state == "rolled_back"]
    assert len(sent_back) >= 0.9 * num_runs
    assert all(rollout.stage.number == 0 for rollout in sent_back)


def test_a_candidate_that_is_as_good_is_promoted() -> None:
    guards = Guards(max_error_rate=0.05, max_latency_ratio=1.3)
    for seed in range(5):
        rollout, _ = run(plan_of(guards), seed, num_requests=20_000, every=200)
        assert [decision.kind for decision in rollout.decisions] == [
            "started",
            "advanced",
            "advanced",
            "passed",
        ]
