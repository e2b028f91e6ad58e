"""What is due when, the earliest first. Knows not what it is."""

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class Timetable(Generic[_Key]):
    """Each key is due at one time at most; another time for it takes the place of the first."""

    def __init__(self) -> None:
        self._times: dict[_Key, float] = {}
        self._heap: list[tuple[float, int, _Key]] = []  # outdated ones stay until their time comes
        self._counter = count()  # so that keys need no order

    def time(self, key: _Key) -> float:
        """Infinity for one that is never due."""
        return self._times.get(key, inf)

    def put(self, key: _Key, time: float) -> None:
        """Have it due then and at no other time; infinity is never."""
        if time == self.time(key):
            return
        if time == inf:
            del self._times[key]
        else:
            self._times[key] = time
            heappush(self._heap, (time, next(self._counter), key))

    def take(self, now: float) -> _Key | None:
        """The one that is due first, if its time has come; it is not due again."""
        while self._heap and self._heap[0][0] <= now:
            time, _, key = heappop(self._heap)
            if self._times.get(key) == time:
                del self._times[key]
                return key
        return None

    def check(self) -> None:
        """Prove that everything which is due will be found."""
        found = {(key, time) for time, _, key in self._heap}
        assert self._times.items() <= found
        assert inf not in self._times.values()
