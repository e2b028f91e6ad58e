"""Scores how well a version does, from what probes found and how requests ended.

Knows no model and no clock.

score = answers x golden x latency x errors, each from 0 to 1:

answers: 0 if the last probe was not answered, else 1.
golden: the share of golden cases that the last probe passed; 1 without any.
latency: 1 while the last probe took at most 5 times the version's baseline, above that
    5 x baseline / seconds. The baseline is the (low) median of its first 5 answered probes, and at
    least 1 s.
errors: 1 - failed / (ended + 20), over the last 200 requests of at most 5 minutes. The 20 stand
    for requests that went well before anyone looked, so that one failure says little.

Why so: docs/decisions/015-what-healthy-means.md.
"""

from collections import deque
from statistics import median_low

from headrace.errors import DeadlineError, HeadraceError, UnavailableError
from headrace.registry.health.probe import Probe

TOLERATED_SLOWDOWN = 5.0  # times the baseline
NUM_BASELINE_PROBES = 5
MIN_BASELINE = 1.0  # seconds; a small model beside a busy one is ten times slower and well
ERROR_WINDOW = 300.0  # seconds
MAX_COUNTED_REQUESTS = 200
IMAGINED_SUCCESSES = 20
SERVER_FAULT = 500  # and every HTTP status above it


class Health:
    """Of one version, in bounded memory. `now` is in seconds of any clock that never falls."""

    def __init__(self) -> None:
        self._last: Probe | None = None
        self._first_seconds: list[float] = []
        self._ended: deque[tuple[float, bool]] = deque(maxlen=MAX_COUNTED_REQUESTS)  # when, failed

    def note_probe(self, probe: Probe, now: float) -> None:
        self._forget(now)
        if probe.is_busy:
            return
        self._last = probe
        if probe.is_alive and len(self._first_seconds) < NUM_BASELINE_PROBES:
            self._first_seconds.append(probe.seconds)

    def note_request(self, *, failed: bool, now: float) -> None:
        self._ended.append((now, failed))
        self._forget(now)

    def score(self, now: float) -> float | None:
        """From 0 to 1; None before the first probe."""
        self._forget(now)
        if self._last is None:
            return None
        return self._answers * self._golden * self._latency * self._errors

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last probe was less than well, so that only another one can clear it."""
        return self._last is not None and self._answers * self._golden * self._latency < 1

    @property
    def reason(self) -> str | None:
        """What keeps the score below 1, as of the last time told."""
        if self._last is None:
            return None
        if self._answers * self._golden < 1:
            return self._last.reason
        if self._latency < 1:
            return f"a probe took {self._last.seconds:.1f} s, and {self._baseline:.1f} s at first"
        if self._num_failed:
            return f"{self._num_failed} of the last {len(self._ended)} requests failed"
        return None

    @property
    def _answers(self) -> float:
        return 1.0 if self._last is not None and self._last.is_alive else 0.0

    @property
    def _golden(self) -> float:
        if self._last is None or self._last.golden_total == 0:
            return 1.0
        return self._last.golden_passed / self._last.golden_total

    @property
    def _latency(self) -> float:
        tolerated = TOLERATED_SLOWDOWN * self._baseline
        if self._last is None or self._last.seconds <= tolerated:
            return 1.0
        return tolerated / self._last.seconds

    @property
    def _errors(self) -> float:
        return 1 - self._num_failed / (len(self._ended) + IMAGINED_SUCCESSES)

    @property
    def _baseline(self) -> float:
        return max(MIN_BASELINE, median_low(self._first_seconds or [MIN_BASELINE]))

    @property
    def _num_failed(self) -> int:
        return sum(failed for _, failed in self._ended)

    def _forget(self, now: float) -> None:
        while self._ended and now - self._ended[0][0] > ERROR_WINDOW:
            self._ended.popleft()


def is_fault(exc: BaseException | None) -> bool:
    """Whether a request that ended so counts against the version that served it.

    Back-pressure, a deadline, the client's own mistakes and its leaving do not. A worker's faults
    arrive as `HeadraceError`; an OSError is the client's connection.
    """
    if isinstance(exc, HeadraceError):
        is_neutral = isinstance(exc, UnavailableError | DeadlineError)
        return exc.status >= SERVER_FAULT and not is_neutral
    return isinstance(exc, Exception) and not isinstance(exc, OSError)
