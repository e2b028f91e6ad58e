from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.attempts.budget import RetryBudget
from headrace.routing.policy import RoutingPolicy

POLICY = RoutingPolicy(retry_share=0.2, retry_floor=0.5, retry_window=10.0)


def withdraw_all(budget: RetryBudget, now: float) -> int:
    number = 0
    while budget.withdraw(now):
        number += 1
    return number


def test_a_quiet_server_has_its_floor() -> None:
    assert withdraw_all(RetryBudget(POLICY), 0.0) == 5


def test_each_five_requests_pay_for_one_retry() -> None:
    budget = RetryBudget(POLICY)
    for _ in range(1000):
        budget.deposit(0.0)
    assert withdraw_all(budget, 0.0) == 205


def test_what_is_not_used_does_not_pile_up() -> None:
    budget = RetryBudget(POLICY)
    for _ in range(1000):
        budget.deposit(0.0)
    assert withdraw_all(budget, 10.0) == 5


def test_in_an_outage_traffic_grows_by_no_more_than_the_share_and_the_floor() -> None:
    budget, retries = RetryBudget(POLICY), 0
    for number in range(20_000):  # a hundred requests a second, every one of which fails
        now = number / 100
        budget.deposit(now)
        retries += sum(budget.withdraw(now) for _ in range(4))
    assert 4_000 <= retries <= 4_000 + 0.5 * (200 + 11)


STEPS = st.lists(
    st.tuples(st.floats(0.0, 4.0), st.integers(0, 60), st.integers(0, 40)), max_size=60
)


@given(STEPS)
def test_no_stretch_of_time_holds_more_retries_than_it_may(
    steps: list[tuple[float, int, int]],
) -> None:
    budget, now = RetryBudget(POLICY), 0.0
    times, requests, retries = [-1.0], [0], [0]  # running totals after each step
    for wait, num_requests, num_failures in steps:
        now += wait
        for _ in range(num_requests):
            budget.deposit(now)
        taken = sum(budget.withdraw(now) for _ in range(num_failures))
        times.append(now)
        requests.append(requests[-1] + num_requests)
        retries.append(retries[-1] + taken)
    for first in range(len(times) - 1):
        for last in range(first + 1, len(times)):
            seconds = times[last] - times[first + 1]
            before = max(
                (i for i, time in enumerate(times) if time < times[first + 1] - 10.0), default=0
            )
            paid = 0.2 * (requests[last] - requests[before])
            assert retries[last] - retries[first] <= paid + 0.5 * (seconds + 11.0) + 1e-6
    assert all(later >= earlier for earlier, later in pairwise(retries))
