"""Counts what a worker owes an answer to, bounded by number and by bytes, and how fast it answers.

Knows nothing of channels and of what is in a request.
"""

from collections import deque

from headrace.errors import QueueFullError

MAX_BYTES = 256 << 20
RATE_WINDOW = 64  # answers
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 60.0  # seconds


class InFlight:
    """The requests and calls that have been sent and not answered; `now` is in seconds."""

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._settled_at: deque[float] = deque(maxlen=RATE_WINDOW)

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, entry_id: str, num_bytes: int, now: float) -> None:
        """Count one more; raises QueueFullError where it is one too many."""
        if len(self._sizes) >= self._max_entries:
            raise QueueFullError(
                f"{len(self._sizes)} requests are already in flight",
                retry_after=self.retry_after(now),
            )
        if self._bytes + num_bytes > self._max_bytes:
            raise QueueFullError(
                f"the requests in flight hold {self._bytes} bytes, of {self._max_bytes} at most",
                retry_after=self.retry_after(now),
            )
        self._sizes[entry_id] = num_bytes
        self._bytes += num_bytes

    def settle(self, entry_id: str, now: float) -> bool:
        """Whoever asked has the answer, or has left; whether it was in flight until now."""
        if (num_bytes := self._sizes.pop(entry_id, None)) is None:
            return False
        self._bytes -= num_bytes
        self._settled_at.append(now)
        return True

    def retry_after(self, now: float) -> float:
        """Seconds until an eighth of the limit will have been answered at the measured rate."""
        if len(self._settled_at) < 2:  # noqa: PLR2004 - a rate takes two
            return MIN_RETRY_AFTER
        seconds_each = (now - self._settled_at[0]) / (len(self._settled_at) - 1)
        return min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, seconds_each * self._max_entries / 8))
