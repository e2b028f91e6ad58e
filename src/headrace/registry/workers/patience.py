"""How long to wait for a worker before something is done about it, as plain values in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Generous while a model loads: reading gigabytes may starve a process for a while."""

    tick: float = 1.0  # between two looks at a worker
    silence: float = 30.0  # without any frame
    silence_while_loading: float = 120.0
    standstill: float = 120.0  # with work and without a finished step, at the least
    standstill_at_first: float = 600.0  # before any step tells how slow this machine is
    slower_than_slowest: float = 10.0  # times the slowest step so far, where that is longer
    standstill_while_loading: float = 900.0  # without progress
    first_delay: float = 0.25  # before a restart; doubles with every failure in a row
    longest_delay: float = 30.0
    settled: float = 60.0  # a worker that served this long has no bad history
    max_failed_loads: int = 3
    termination: float = 2.0  # from SIGTERM to SIGKILL
    probe: float = 60.0  # for the answer to a health check's prompt
    between_probes: float = 30.0  # of a version that nobody uses
