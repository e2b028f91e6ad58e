"""Judges from its frames whether a worker still gets on. Knows no clock: it counts ticks.

Ticks and not seconds, because when this process was itself suspended or starved, the frames that
it did not read are no fault of the worker's.
"""

import math
from typing import assert_never

from headrace.registry.workers.patience import Patience
from headrace.worker import frames


class Watchdog:
    """Counts ticks without a frame, and ticks without progress."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._is_loading = True
        self._silent_ticks = 0
        self._still_ticks = 0
        self._slowest_step = 0  # in ticks
        self._num_steps = 0
        self._has_work = False

    def hear(self, frame: frames.FromWorker) -> None:
        self._silent_ticks = 0
        match frame:
            case frames.Step():
                self._notice_steps(frame.stats.num_steps)
            case frames.Heartbeat():
                self._has_work = frame.has_work
                self._notice_steps(frame.num_steps)
            case frames.Ready():
                self._is_loading = False
                self._still_ticks = 0
            case frames.Progress():
                self._still_ticks = 0
            case frames.Hello() | frames.Failed() | frames.Reply():
                pass
            case _:
                assert_never(frame)

    def tick(self) -> str | None:
        """Call once a tick; the answer is what is wrong with the worker."""
        self._silent_ticks += 1
        self._still_ticks = self._still_ticks + 1 if self._is_loading or self._has_work else 0
        if self._silent_ticks > self._ticks(self._silence):
            return f"has not been heard for {self._silence:g} s"
        if self._still_ticks > self._ticks(self._standstill):
            return (
                f"{self._doing} without progress for {self._still_ticks * self._patience.tick:g} s"
            )
        return None

    def _notice_steps(self, num_steps: int) -> None:
        if num_steps != self._num_steps:
            self._num_steps = num_steps
            self._slowest_step = max(self._slowest_step, self._still_ticks)
            self._still_ticks = 0

    def _ticks(self, seconds: float) -> int:
        return math.ceil(seconds / self._patience.tick)

    @property
    def _silence(self) -> float:
        patience = self._patience
        return patience.silence_while_loading if self._is_loading else patience.silence

    @property
    def _standstill(self) -> float:
        """Steps of a large model on a small machine may take minutes and still be healthy."""
        patience = self._patience
        if self._is_loading:
            return patience.standstill_while_loading
        if self._num_steps == 0:
            return max(patience.standstill, patience.standstill_at_first)
        slowest = self._slowest_step * patience.tick
        return max(patience.standstill, patience.slower_than_slowest * slowest)

    @property
    def _doing(self) -> str:
        return "was loading" if self._is_loading else "had work"
