"""How much may wait, and when a refused caller should come back. No clock: time is an argument."""

import math

from headrace.engine.config import EngineConfig
from headrace.errors import QueueFullError

_MEMORY = 20.0  # seconds over which the drain rate forgets
_FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0


class QueueBound:
    """Counts requests and prompt tokens from acceptance until they start, and how fast they do.

    Each refused caller is promised a later place, so that callers refused together do not all come
    back at once.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._max_requests = config.max_queued_requests
        self._max_tokens = config.max_queued_tokens
        self._tokens: dict[str, int] = {}
        self._num_tokens = 0
        self._drained = 0.0  # tokens and seconds, both fading with age
        self._busy = 0.0
        self._measured_at = 0.0
        self._promised_until = 0.0

    @property
    def num_requests(self) -> int:
        return len(self._tokens)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def enter(self, request_id: str, num_tokens: int, now: float) -> None:
        """Take a place, or raise QueueFullError. An empty queue takes any one request."""
        self._measure(now)
        if self._is_full(num_tokens):
            raise self._refusal(num_tokens, now)
        self._tokens[request_id] = num_tokens
        self._num_tokens += num_tokens

    def resize(self, request_id: str, num_tokens: int, now: float) -> None:
        """Replace the estimate of a request's tokens, or give up its place and raise."""
        self._drop(request_id)
        self.enter(request_id, num_tokens, now)

    def start(self, request_id: str, now: float) -> None:
        """A request left the queue because it was started."""
        self._measure(now)
        self._drained += self._drop(request_id)

    def leave(self, request_id: str, now: float) -> None:
        """A request left the queue for another reason."""
        self._measure(now)
        self._drop(request_id)

    def _is_full(self, num_tokens: int) -> bool:
        return bool(self._tokens) and (
            len(self._tokens) >= self._max_requests
            or self._num_tokens + num_tokens > self._max_tokens
        )

    def _refusal(self, num_tokens: int, now: float) -> QueueFullError:
        return QueueFullError(
            f"{len(self._tokens)} requests with {self._num_tokens} prompt tokens are waiting, "
            f"and {self._max_requests} and {self._max_tokens} may",
            retry_after=self._retry_after(num_tokens, now),
        )

    def _retry_after(self, num_tokens: int, now: float) -> float:
        """Until the promises made and this one are drained, at the measured rate."""
        rate = self._drained / self._busy if self._busy > 0 else 0.0
        if rate <= 0:
            return _FIRST_RETRY
        mean = self._num_tokens / len(self._tokens)
        needed = max(mean, self._num_tokens + num_tokens - self._max_tokens)
        start = max(now, self._promised_until)
        self._promised_until = min(start + needed / rate, now + _LONGEST_RETRY)
        return max(0.1, self._promised_until - now)

    def _measure(self, now: float) -> None:
        """Let the past fade, and count the time since as busy if anyone waited."""
        elapsed = max(0.0, now - self._measured_at)  # what started may be told of later
        self._measured_at += elapsed
        if self._tokens:
            fade = math.exp(-elapsed / _MEMORY)
            self._drained *= fade
            self._busy = self._busy * fade + _MEMORY * (1 - fade)

    def _drop(self, request_id: str) -> int:
        num_tokens = self._tokens.pop(request_id, 0)
        self._num_tokens -= num_tokens
        return num_tokens
