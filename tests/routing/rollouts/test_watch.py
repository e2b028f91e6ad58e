from headrace.routing.observation import Observation
from headrace.routing.rollouts.plan import Guards
from headrace.routing.rollouts.waiting import waiting_for
from headrace.routing.rollouts.watch import Watch

GUARDS = Guards(
    max_error_rate=0.1, max_error_increase=0.1, max_latency_ratio=2.0, max_ttft_ratio=2.0
)


def watch(guards: Guards = GUARDS) -> Watch:
    return Watch(guards, num_stages=1, is_compared=True)


def seen(
    user: str,
    *,
    failed: bool = False,
    ttft: float | None = 0.5,
    latency: float = 1.0,
    is_cut_off: bool = False,
) -> Observation:
    return Observation(
        user=user,
        failed=failed,
        ttft=ttft,
        latency=latency,
        num_tokens=None,
        is_cut_off=is_cut_off,
    )


def counts(watched: Watch) -> dict[str, int]:
    return {name: each.num_candidate for name, each in watched.read().items()}


def test_a_client_that_left_counts_for_latency_alone() -> None:
    watched = watch()
    watched.add(seen("ada", ttft=None, latency=7.0, is_cut_off=True), candidate=True)
    assert counts(watched) == {
        "max_error_rate": 0,
        "max_error_increase": 0,
        "max_latency_ratio": 1,
        "max_ttft_ratio": 1,
    }
    numbers = watched.read()
    assert numbers["max_latency_ratio"].candidate == numbers["max_ttft_ratio"].candidate == 7.0
    assert (watched.num_candidate_left, watched.num_stable_left) == (1, 0)


def test_what_the_servers_own_deadline_cut_off_is_a_failure_that_took_long() -> None:
    watched = watch()
    watched.add(seen("ada", failed=True, latency=60.0, is_cut_off=True), candidate=True)
    assert set(counts(watched).values()) == {1}
    assert watched.num_candidate_left == 0


def test_a_failure_has_no_latency() -> None:
    watched = watch()
    watched.add(seen("ada", failed=True, latency=0.001), candidate=True)
    assert counts(watched) == {
        "max_error_rate": 1,
        "max_error_increase": 1,
        "max_latency_ratio": 0,
        "max_ttft_ratio": 0,
    }


# What is waited for


def test_users_and_requests_that_lack_are_counted() -> None:
    watched = watch(Guards(max_latency_ratio=2.0))
    for i in range(298):
        watched.add(seen(f"user {i % 15}"), candidate=True)
    for i in range(20):
        watched.add(seen(f"other {i}"), candidate=False)
    numbers = watched.read()
    assert numbers["max_latency_ratio"].num_candidate_users == 15
    assert waiting_for(numbers, watched.num_candidate) == [
        "15 of 20 users of the candidate",
        "298 of 500 requests of the candidate",
        "20 of 50 requests of the stable version",
    ]


def test_a_guard_that_has_seen_enough_and_is_not_certain_is_named() -> None:
    watched = watch(Guards(max_latency_ratio=1.01))
    for i in range(600):
        latency = 1.0 + i % 10
        watched.add(seen(f"user {i}", latency=latency), candidate=True)
        watched.add(seen(f"other {i}", latency=latency), candidate=False)
    words = waiting_for(watched.read(), watched.num_candidate)
    assert words == ["max_latency_ratio is not certain yet"]
