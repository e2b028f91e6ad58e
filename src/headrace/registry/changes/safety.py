"""Whether a version may become the active one, as five named checks. Knows only plain values."""

import math
from dataclasses import dataclass

from headrace.errors import InvalidRequestError
from headrace.registry.lifecycle import SERVING, State

MIN_HEALTH_SCORE = 0.8
MIN_AVAILABLE_MEMORY = 64 << 20  # bytes; below it the next request may end a process


@dataclass(frozen=True, slots=True)
class Check:
    """`detail` says what was found, and where it is not enough, what would be."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class SafetyReport:
    """The checks in the order in which a person would make them."""

    model_id: str
    checks: tuple[Check, ...]

    @property
    def safe(self) -> bool:
        return all(check.passed for check in self.checks)


class UnsafeSwapError(InvalidRequestError):
    """A swap was refused; `report` holds every check."""

    code = "unsafe_swap"

    def __init__(self, report: SafetyReport) -> None:
        failed = (f"{each.name} ({each.detail})" for each in report.checks if not each.passed)
        super().__init__(
            f"{report.model_id} cannot become active: {', '.join(failed)}", param="model_id"
        )
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemHealth:
    """The server itself; `available_memory` in bytes, None where the system does not tell."""

    is_draining: bool = False
    is_store_writable: bool = True
    available_memory: int | None = None


def safety_report(
    model_id: str,
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
) -> SafetyReport:
    """Judge a version; `state` None is one that is not known.

    `change` names what is being done to its model at this moment, `reason` says why its workers do
    not answer, `score_reason` what keeps its score low: each as far as that is known.
    """
    return SafetyReport(
        model_id,
        (
            _exists_and_ready(state, phase, reason, is_answering=is_answering),
            _no_concurrent_operation(change),
            _system_healthy(system),
            _health_score(
                score,
                # Said once is enough: it may be what the workers do not answer for.
                None if score_reason and score_reason in (reason or "") else score_reason,
                is_asleep=_is_asleep(state, phase),
            ),
            _not_already_active(is_active=is_active),
        ),
    )


def _exists_and_ready(
    state: State | None, phase: str, reason: str | None, *, is_answering: bool
) -> Check:
    passed = (state in SERVING and is_answering) or _is_asleep(state, phase)
    return Check("exists_and_ready", passed, _readiness(state, phase, reason, passed=passed))


def _readiness(state: State | None, phase: str, reason: str | None, *, passed: bool) -> str:
    if state is None:
        return "not loaded"
    if _is_asleep(state, phase):
        return f"{state}, {phase}: a swap loads it first"
    if passed:
        return state
    doing = f", {phase}" if phase else ""
    silent = ", not answering" if state in SERVING else ""
    return f"{state}{doing}{silent}{_because(reason)}"


def _is_asleep(state: State | None, phase: str) -> bool:
    """Whether it is well, and its workers have ended for lack of use or of room alone."""
    return (state, phase) in {("ready", "idle"), ("deprecated", "cold")}


def _no_concurrent_operation(change: str | None) -> Check:
    detail = "none runs" if change is None else f"{change or 'another change'} of this model runs"
    return Check("no_concurrent_operation", change is None, detail)


def _system_healthy(system: SystemHealth) -> Check:
    faults = []
    if system.is_draining:
        faults.append("the server is shutting down")
    if not system.is_store_writable:
        faults.append("the database cannot be written")
    memory = system.available_memory
    if memory is not None and memory < MIN_AVAILABLE_MEMORY:
        faults.append(
            f"{memory >> 20} MiB of memory are available, "
            f"at least {MIN_AVAILABLE_MEMORY >> 20} MiB are needed"
        )
    return Check("system_healthy", not faults, ", ".join(faults) or "healthy")


def _health_score(score: float | None, reason: str | None, *, is_asleep: bool) -> Check:
    if score is None and is_asleep:
        return Check("health_score", True, "not probed since the start: a swap probes it first")
    if score is None:
        return Check("health_score", False, "not probed yet")
    if score >= MIN_HEALTH_SCORE:
        return Check("health_score", True, _shown(score))
    needed = f"at least {_shown(MIN_HEALTH_SCORE)} is needed"
    return Check("health_score", False, f"{_shown(score)}, {needed}{_because(reason)}")


def _not_already_active(*, is_active: bool) -> Check:
    detail = "already active" if is_active else "not active"
    return Check("not_already_active", not is_active, detail)


def _shown(score: float) -> str:
    """Rounded down, so that a score below a limit never looks like it."""
    return f"{math.floor(round(score * 100, 6)) / 100:.2f}"


def _because(reason: str | None) -> str:
    return f"; {reason}" if reason else ""
