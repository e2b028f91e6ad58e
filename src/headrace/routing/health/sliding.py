"""Counts of the last seconds in constant space. Knows no clock and not what is counted."""

from collections import deque

NUM_SLOTS = 10


class SlidingCount:
    """How often something happened in the last `seconds`.

    Kept in slots of a tenth of that, so what is counted reaches back nine tenths to the whole.
    """

    def __init__(self, seconds: float) -> None:
        self._slot_seconds = seconds / NUM_SLOTS
        self._slots: deque[list[int]] = deque(maxlen=NUM_SLOTS)  # [number of the slot, count]

    def add(self, now: float) -> None:
        slot = int(now // self._slot_seconds)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += 1
        else:
            self._slots.append([slot, 1])

    def total(self, now: float) -> int:
        oldest = int(now // self._slot_seconds) - NUM_SLOTS + 1
        return sum(count for slot, count in self._slots if slot >= oldest)

    def clear(self) -> None:
        self._slots.clear()
