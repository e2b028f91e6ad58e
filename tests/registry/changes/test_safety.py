import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.changes.safety import (
    MIN_AVAILABLE_MEMORY,
    SafetyReport,
    SystemHealth,
    UnsafeSwapError,
    safety_report,
)
from headrace.registry.lifecycle import MOVES, State

NAMES = [
    "exists_and_ready",
    "no_concurrent_operation",
    "system_healthy",
    "health_score",
    "not_already_active",
]


def report_of(
    *,
    state: State | None = "ready",
    is_answering: bool = True,
    phase: str = "",
    change: str | None = None,
    system: SystemHealth | None = None,
    reason: str | None = None,
    score: float | None = 1.0,
    score_reason: str | None = None,
    is_active: bool = False,
) -> SafetyReport:
    return safety_report(
        "chat@2",
        state=state,
        is_answering=is_answering,
        phase=phase,
        change=change,
        system=system or SystemHealth(),
        reason=reason,
        score=score,
        score_reason=score_reason,
        is_active=is_active,
    )


def failures(report: SafetyReport) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if not check.passed}


@pytest.mark.parametrize("state", ["ready", "deprecated"])
def test_a_version_that_is_well_may_become_active_for_the_first_time_or_again(
    state: State,
) -> None:
    report = report_of(state=state)
    assert report.safe
    assert [check.name for check in report.checks] == NAMES
    assert report.checks[0].detail == state


def test_a_ready_version_that_nobody_has_used_may_become_active() -> None:
    report = report_of(is_answering=False, phase="idle")
    assert report.safe
    assert report.checks[0].detail == "ready, idle: a swap loads it first"


def test_an_unknown_version_is_not_loaded() -> None:
    report = report_of(state=None, is_answering=False, score=None)
    assert failures(report) == {
        "exists_and_ready": "not loaded",
        "health_score": "not probed yet",
    }


def test_a_version_that_loads_says_how_far_it_is() -> None:
    report = report_of(state="loading", is_answering=False, phase="reading", score=None)
    assert failures(report)["exists_and_ready"] == "loading, reading"


def test_a_failed_version_says_why() -> None:
    report = report_of(state="failed", is_answering=False, reason="m.gguf: no such file")
    assert failures(report) == {"exists_and_ready": "failed; m.gguf: no such file"}


def test_a_version_whose_workers_restart_is_not_answering() -> None:
    report = report_of(is_answering=False, phase="restarting", reason="was killed")
    assert failures(report) == {"exists_and_ready": "ready, restarting, not answering; was killed"}


@pytest.mark.parametrize("score", [None, 1.0])
def test_a_cold_version_is_loaded_and_probed_by_the_swap(score: float | None) -> None:
    report = report_of(state="deprecated", is_answering=False, phase="cold", score=score)
    assert report.safe
    assert report.checks[0].detail == "deprecated, cold: a swap loads it first"


def test_a_running_change_is_named() -> None:
    report = report_of(change="load of chat@3")
    assert failures(report) == {"no_concurrent_operation": "load of chat@3 of this model runs"}


def test_every_fault_of_the_system_is_named() -> None:
    system = SystemHealth(is_draining=True, is_store_writable=False, available_memory=10 << 20)
    assert failures(report_of(system=system)) == {
        "system_healthy": "the server is shutting down, the database cannot be written, "
        "10 MiB of memory are available, at least 64 MiB are needed"
    }


@pytest.mark.parametrize("available", [MIN_AVAILABLE_MEMORY, None])
def test_enough_memory_or_none_that_is_known_is_no_fault(available: int | None) -> None:
    assert report_of(system=SystemHealth(available_memory=available)).safe


def test_a_low_score_says_what_is_needed_and_what_lowers_it() -> None:
    wrong = "golden case 'Capital of France?' expected 'Paris', answered 'Rome'"
    report = report_of(score=0.62, score_reason=wrong)
    assert failures(report) == {"health_score": f"0.62, at least 0.80 is needed; {wrong}"}


def test_a_score_just_below_the_limit_does_not_look_like_it() -> None:
    assert report_of(score=0.8).safe
    assert failures(report_of(score=0.79999))["health_score"].startswith("0.79,")


def test_an_active_version_fails_for_that_alone() -> None:
    report = report_of(state="active", is_active=True)
    assert failures(report) == {"not_already_active": "already active"}


def test_the_error_of_an_unsafe_swap_is_one_sentence_of_what_failed() -> None:
    error = UnsafeSwapError(report_of(change="swap", score=0.5))
    assert (error.status, error.code, error.param) == (400, "unsafe_swap", "model_id")
    assert error.report.model_id == "chat@2"
    assert error.message == (
        "chat@2 cannot become active: no_concurrent_operation (swap of this model runs), "
        "health_score (0.50, at least 0.80 is needed)"
    )


@given(
    state=st.sampled_from([None, *MOVES]),
    is_answering=st.booleans(),
    phase=st.sampled_from(["", "cold", "idle", "restarting"]),
    change=st.none() | st.text(),
    system=st.builds(
        SystemHealth,
        is_draining=st.booleans(),
        is_store_writable=st.booleans(),
        available_memory=st.none() | st.integers(0, 1 << 40),
    ),
    reason=st.none() | st.text(),
    score=st.none() | st.floats(0, 1),
    score_reason=st.none() | st.text(),
    is_active=st.booleans(),
)
def test_a_report_is_safe_when_all_five_checks_pass_and_each_says_something(
    *,
    state: State | None,
    is_answering: bool,
    phase: str,
    change: str | None,
    system: SystemHealth,
    reason: str | None,
    score: float | None,
    score_reason: str | None,
    is_active: bool,
) -> None:
    report = safety_report(
        "m@1",
        state=state,
        is_answering=is_answering,
        phase=phase,
        change=change,
        system=system,
        reason=reason,
        score=score,
        score_reason=score_reason,
        is_active=is_active,
    )
    has_memory = system.available_memory is None or system.available_memory >= MIN_AVAILABLE_MEMORY
    is_asleep = (state, phase) in {("ready", "idle"), ("deprecated", "cold")}
    is_healthy = is_asleep if score is None else score >= 0.8
    assert [check.passed for check in report.checks] == [
        is_asleep or (state in {"ready", "active", "deprecated"} and is_answering),
        change is None,
        not system.is_draining and system.is_store_writable and has_memory,
        is_healthy,
        not is_active,
    ]
    assert report.safe == all(check.passed for check in report.checks)
    assert [check.name for check in report.checks] == NAMES
    assert all(check.detail for check in report.checks)
