import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
    NotReadyError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.registry.health.probe import Probe
from headrace.registry.health.score import (
    ERROR_WINDOW,
    MAX_COUNTED_REQUESTS,
    NUM_BASELINE_PROBES,
    Health,
    is_fault,
)

HUNG = Probe(is_alive=False, seconds=30.0, reason="did not answer within 30 s")


def well(seconds: float = 0.1) -> Probe:
    return Probe(is_alive=True, seconds=seconds)


def golden(passed: int, total: int) -> Probe:
    reason = None if passed == total else "golden case 'a' expected 'b', answered 'c'"
    return Probe(
        is_alive=True, seconds=0.1, golden_passed=passed, golden_total=total, reason=reason
    )


def probed(*probes: Probe) -> Health:
    health = Health()
    for probe in probes or (well(),):
        health.note_probe(probe, 0.0)
    return health


def note_requests(health: Health, *, good: int = 0, failed: int = 0, now: float = 0.0) -> None:
    for _ in range(good):
        health.note_request(failed=False, now=now)
    for _ in range(failed):
        health.note_request(failed=True, now=now)


def test_there_is_no_score_before_the_first_probe() -> None:
    health = Health()
    note_requests(health, good=3, failed=3)
    assert health.score(0.0) is None
    assert health.reason is None


def test_a_version_that_answers_scores_one_and_has_no_reason() -> None:
    health = probed()
    note_requests(health, good=30)
    assert health.score(0.0) == 1.0
    assert health.reason is None


def test_a_probe_without_an_answer_scores_nothing_until_the_next_one() -> None:
    health = probed(well(), HUNG)
    assert health.score(0.0) == 0.0
    assert health.reason == "did not answer within 30 s"
    health.note_probe(well(), 1.0)
    assert health.score(1.0) == 1.0


@pytest.mark.parametrize("last", [HUNG, golden(1, 2), well(50.0)])
def test_only_another_probe_clears_what_a_probe_has_found(last: Probe) -> None:
    health = probed(well(), last)
    note_requests(health, good=30)
    assert health.is_in_doubt
    health.note_probe(well(), 1.0)
    assert not health.is_in_doubt


def test_requests_that_fail_are_no_doubt_that_a_probe_could_clear() -> None:
    assert not Health().is_in_doubt
    health = probed()
    note_requests(health, failed=30)
    assert not health.is_in_doubt


@pytest.mark.parametrize(("passed", "score"), [(5, 1.0), (4, 0.8), (0, 0.0)])
def test_the_share_of_golden_cases_counts(passed: int, score: float) -> None:
    assert probed(golden(passed, 5)).score(0.0) == score


def test_a_golden_case_that_failed_is_the_reason() -> None:
    assert probed(golden(1, 2)).reason == "golden case 'a' expected 'b', answered 'c'"


def test_a_full_queue_tells_nothing_of_health() -> None:
    busy = Probe(is_alive=False, seconds=0.0, is_busy=True, reason="full")
    assert probed(busy).score(0.0) is None
    assert probed(well(), busy).score(0.0) == 1.0


def test_a_fast_model_may_take_five_seconds_beside_a_busy_one() -> None:
    assert probed(well(0.01), well(5.0)).score(0.0) == 1.0
    assert probed(well(0.01), well(10.0)).score(0.0) == 0.5


def test_a_slow_model_is_measured_by_its_own_pace() -> None:
    first = [well(8.0)] * NUM_BASELINE_PROBES
    assert probed(*first, well(40.0)).score(0.0) == 1.0
    health = probed(*first, well(80.0))
    assert health.score(0.0) == 0.5
    assert health.reason == "a probe took 80.0 s, and 8.0 s at first"


def test_a_cold_first_probe_does_not_spoil_the_baseline() -> None:
    first = [well(60.0), *[well(0.1)] * (NUM_BASELINE_PROBES - 1)]
    assert probed(*first, well(10.0)).score(0.0) == 0.5


def test_later_probes_do_not_move_the_baseline() -> None:
    creeping = [well(0.1)] * NUM_BASELINE_PROBES + [well(50.0)] * 100
    assert probed(*creeping).score(0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("good", "failed", "is_well"),
    [(0, 1, True), (0, 5, True), (0, 6, False), (80, 20, True), (100, 45, False), (1, 4, True)],
)
def test_few_failures_are_forgiven_and_many_are_not(
    good: int, failed: int, *, is_well: bool
) -> None:
    health = probed()
    note_requests(health, good=good, failed=failed)
    score = health.score(0.0)
    assert score == 1 - failed / (good + failed + 20)
    assert (score >= 0.8) == is_well
    assert health.reason == f"{failed} of the last {good + failed} requests failed"


def test_requests_are_forgotten_after_five_minutes() -> None:
    health = probed()
    note_requests(health, failed=10, now=1.0)
    assert health.score(1.0 + ERROR_WINDOW) != 1.0
    assert health.score(1.1 + ERROR_WINDOW) == 1.0
    assert health.reason is None


def test_only_the_last_two_hundred_requests_count() -> None:
    health = probed()
    note_requests(health, failed=50)
    note_requests(health, good=MAX_COUNTED_REQUESTS)
    assert health.score(0.0) == 1.0


STEPS = st.lists(
    st.one_of(
        st.booleans(),
        st.builds(
            Probe,
            is_alive=st.booleans(),
            seconds=st.floats(0, 1e6),
            golden_passed=st.integers(0, 3),
            golden_total=st.just(3),
            is_busy=st.booleans(),
            reason=st.just("why"),
        ),
    )
)


@given(STEPS, st.floats(0, 100))
def test_a_score_is_a_share_and_every_lower_one_has_a_reason(
    steps: list[bool | Probe], interval: float
) -> None:
    health, now = Health(), 0.0
    for step in steps:
        now += interval
        if isinstance(step, Probe):
            health.note_probe(step, now)
        else:
            health.note_request(failed=step, now=now)
        score = health.score(now)
        assert score is None or 0.0 <= score <= 1.0
        assert (health.reason is not None) == (score is not None and score < 1.0)


@pytest.mark.parametrize(
    "end",
    [HeadraceError("ours"), WorkerDiedError("gone"), ZeroDivisionError()],
)
def test_faults_of_ours_count_against_a_version(end: BaseException) -> None:
    assert is_fault(end)


@pytest.mark.parametrize(
    "end",
    [
        None,
        InvalidRequestError("theirs"),
        ModelNotFoundError("which?"),
        QueueFullError("full", retry_after=1.0),
        NotReadyError("soon", retry_after=1.0),
        DrainingError("closing", retry_after=1.0),
        DeadlineError("late"),
        asyncio.CancelledError(),
        GeneratorExit(),
        ConnectionResetError(),
    ],
)
def test_mistakes_pressure_deadlines_and_departures_do_not(end: BaseException | None) -> None:
    assert not is_fault(end)
