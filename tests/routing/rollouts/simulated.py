"""Whole rollouts on simulated requests, with a look every so many of them."""

import random

from headrace.routing.observation import Observation
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import Rollout

SECONDS_BETWEEN = 0.1  # requests


def plan_of(guards: Guards, stages: tuple[float, ...] = (10.0, 50.0, 100.0)) -> Plan:
    return Plan(name="chat", candidate="chat@2", guards=guards, stages=stages, stage_seconds=60.0)


def run(
    plan: Plan,
    seed: int,
    *,
    num_requests: int,
    every: int,
    error_rates: tuple[float, float] = (0.01, 0.01),
    latencies: tuple[float, float] = (1.0, 1.0),
) -> tuple[Rollout, int]:
    """A rollout and the request at which it ended; rates and medians are stable, candidate."""
    rng = random.Random(seed)
    rollout = Rollout.begin(f"r{seed}", plan, "chat@1", 0.0)
    for i in range(num_requests):
        candidate, stage = rollout.takes(f"q{i}"), rollout.stage.number
        latency = latencies[candidate] * rng.lognormvariate(0, 0.5)
        seen = Observation(
            user=f"q{i}",
            failed=rng.random() < error_rates[candidate],
            ttft=latency / 5,
            latency=latency,
            num_tokens=10,
        )
        rollout.observe(seen, candidate=candidate, stage=stage)
        if i % every == 0:
            rollout.evaluate(i * SECONDS_BETWEEN)
            if rollout.is_over or rollout.is_promoting:
                return rollout, i
    return rollout, num_requests
