import random

import pytest

from headrace.routing.rollouts.limit import RateLimit
from headrace.routing.stats.comparison import Verdict

ALPHA = 0.05
LOOKS = 20
REQUESTS_A_LOOK = 100


def verdicts(rate: float, seed: int, *, num_users: int | None = None) -> set[Verdict]:
    """All that a limit of 5 % ever says, looked at again and again."""
    rng, limit, said = random.Random(seed), RateLimit(0.05), set[Verdict]()
    for look in range(LOOKS):
        for i in range(REQUESTS_A_LOOK):
            user = rng.randrange(num_users) if num_users else look * REQUESTS_A_LOOK + i
            limit.add(str(user), failed=rng.random() < rate)
        said.add(limit.read(ALPHA).verdict)
    return said


@pytest.mark.parametrize("wrong", [Verdict.WORSE, Verdict.FINE])
def test_at_the_limit_it_rarely_ever_errs(wrong: Verdict) -> None:
    assert sum(wrong in verdicts(0.05, seed) for seed in range(100)) <= ALPHA * 100


@pytest.mark.parametrize(("rate", "verdict"), [(0.15, Verdict.WORSE), (0.01, Verdict.FINE)])
def test_far_from_the_limit_it_finds_out(rate: float, verdict: Verdict) -> None:
    assert all(verdict in verdicts(rate, seed) for seed in range(10))


def test_it_says_nothing_of_a_handful_of_users() -> None:
    assert verdicts(0.5, 1, num_users=10) == {Verdict.UNKNOWN}


def test_without_a_request_it_knows_nothing() -> None:
    reading = RateLimit(0.05).read(ALPHA)
    assert (reading.verdict, reading.num_candidate) == (Verdict.UNKNOWN, 0)
    assert (reading.lowest_excess, reading.highest_excess) == (-0.05, 0.95)
