from headrace.routing.observation import Observation
from headrace.routing.rollouts.last_requests import LastRequests


def seen(user: str, *, failed: bool = False, is_cut_off: bool = False) -> Observation:
    return Observation(
        user=user,
        failed=failed,
        ttft=None,
        latency=1.0,
        num_tokens=None,
        is_cut_off=is_cut_off,
    )


def add(last: LastRequests, failures: str, *, candidate: bool = True, num_users: int = 20) -> None:
    """One request a letter; x is one that fails."""
    for i, letter in enumerate(failures):
        it = seen(f"user {i % num_users}", failed=letter == "x")
        last.add(it, candidate=candidate)


def test_more_than_half_of_the_candidates_last_20_break_it() -> None:
    last = LastRequests()
    add(last, "x" * 10 + "." * 10)
    assert not last.is_broken
    add(last, "x" * 11)
    assert last.is_broken


def test_two_users_do_not_break_it() -> None:
    last = LastRequests()
    add(last, "x" * 20, num_users=2)
    assert not last.is_broken
    add(last, "x" * 20, num_users=3)
    assert last.is_broken


def test_an_outage_of_both_is_not_the_candidates() -> None:
    last = LastRequests()
    add(last, "x" * 20)
    add(last, "x" * 12 + "." * 8, candidate=False)
    assert not last.is_broken
    add(last, "." * 8 + "x" * 4 + "." * 8, candidate=False)
    assert last.is_broken


def test_an_outage_counts_by_its_share_where_the_stable_version_has_few_requests() -> None:
    last = LastRequests()
    add(last, "x" * 20)
    add(last, "xxx", candidate=False)
    assert not last.is_broken


def test_clients_that_leave_are_no_failures() -> None:
    last = LastRequests()
    for i in range(40):
        last.add(seen(f"user {i}", is_cut_off=True), candidate=True)
    assert not last.is_broken
    for i in range(20):
        last.add(seen(f"user {i}", failed=True, is_cut_off=True), candidate=True)
    assert last.is_broken
