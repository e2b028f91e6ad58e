"""Keeps what is needed to go on with a relayed stream elsewhere, within bounds. Reads none of it.

A stream over a bound is served all the same: only it cannot move any more.
"""

import asyncio
from collections.abc import Callable

MAX_KEPT = 1 << 20  # bytes of one answer
MAX_KEPT_BY_ALL = 256 << 20  # bytes of all streams' bodies and answers
READ_AT_ONCE = 2  # of the streams that break off with one upstream


class KeptBytes:
    """What all relayed streams of a server share."""

    def __init__(self, max_bytes: int = MAX_KEPT_BY_ALL) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.reading = asyncio.Semaphore(READ_AT_ONCE)

    def take(self, num_bytes: int) -> bool:
        """Whether there is room for these, which then are counted."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes


class Kept:
    """The events of one stream, and its request's body; `forget` is to let go of the body."""

    def __init__(self, shared: KeptBytes, *, forget: Callable[[], None]) -> None:
        self._shared = shared
        self._forget = forget
        self._events: bytearray | None = bytearray()
        self._num_counted = 0

    def begin(self, body_size: int) -> None:
        """Count the body, which is there already."""
        self._count(body_size)

    @property
    def events(self) -> bytes | None:
        """All that came; None where it was too much."""
        return None if self._events is None else bytes(self._events)

    def add(self, piece: bytes) -> None:
        if self._events is None:
            return
        if len(self._events) + len(piece) > MAX_KEPT:
            self.drop()
        elif self._count(len(piece)):
            self._events += piece

    def drop(self) -> None:
        """Nobody will ask for it any more."""
        if self._events is not None:
            self._events = None
            self._shared.give_back(self._num_counted)
            self._forget()

    def _count(self, num_bytes: int) -> bool:
        if self._shared.take(num_bytes):
            self._num_counted += num_bytes
            return True
        self.drop()
        return False
