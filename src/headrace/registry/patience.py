"""How long to wait for a worker before something is done about it, as plain values in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Generous while a model loads: reading gigabytes may starve a process for a while."""

    tick: float = 1.0  # between two looks at a worker
    silence: float = 15.0  # without any frame
    silence_while_loading: float = 120.0
    standstill: float = 60.0  # with work and without a finished step
    standstill_while_loading: float = 900.0  # without progress
    first_delay: float = 0.25  # before a restart; doubles with every failure in a row
    longest_delay: float = 30.0
    settled: float = 60.0  # a worker that served this long has no bad history
    max_failed_loads: int = 3
    termination: float = 2.0  # from SIGTERM to SIGKILL
