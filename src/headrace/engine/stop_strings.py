"""Finds stop strings in text that arrives in pieces, and never lets part of one out."""

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """Where the text ends, in characters from its start, and the string that ended it."""

    end: int
    stop: str


class StopStrings:
    """Watches one text grow. `num_safe` of its characters can no longer become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops)
        self._stops = stops
        self._longest = max(map(len, stops))
        self._tail = ""  # the text from `num_safe` on
        self.num_safe = 0

    def push(self, text: str) -> Match | None:
        """Add text; the earliest stop string in it, the longer one of two at the same place."""
        tail = self._tail + text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := tail.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            return Match(self.num_safe + at, stop)
        held = self._num_held(tail)
        self.num_safe += len(tail) - held
        self._tail = tail[len(tail) - held :]
        return None

    def skip(self, text: str) -> None:
        """Add text that may not end the answer; only before any that may."""
        assert not self._tail
        self.num_safe += len(text)

    def _num_held(self, tail: str) -> int:
        """Length of the longest end of the text that some stop string starts with."""
        for length in range(min(len(tail), self._longest - 1), 0, -1):
            end = tail[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
