"""Measures one request that is passed on: latencies while pieces go by, how it ended."""

import time

from headrace.generation import Usage
from headrace.telemetry.metrics import Metrics

_EVENT = b"data: "
# The label is a bounded set, whatever an upstream calls it.
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
_OTHER = "other"


class RelayMeter:
    """Counts for one model version, as `headrace.api.meter` does for chunks."""

    def __init__(self, metrics: Metrics, model_id: str, *, arrived: float) -> None:
        self._model, _, self._version = model_id.rpartition("@")
        self._metrics = metrics
        self._latencies = metrics.latencies(self._model, self._version)
        self._observe_gap = self._latencies.inter_token_latency.observe
        self._arrived = arrived
        self._last_at: float | None = None
        self._finish_reason = "stop"
        self.ttft: float | None = None
        self.usage: Usage | None = None
        """Of the whole answer, where it is known."""

    def count(self, piece: bytes) -> None:
        """An event of a stream is taken for a token, as most of them are."""
        self.count_tokens(piece.count(_EVENT) or 1)

    def count_tokens(self, number: int) -> None:
        now, last = time.monotonic(), self._last_at
        if last is None:
            self.ttft = now - self._arrived
            self._latencies.time_to_first_token.observe(self.ttft)
        else:
            self._observe_gap((now - last) / number, number)
        self._last_at = now

    def end(self, finish_reason: str | None, usage: Usage | None) -> None:
        """All of the answer has come."""
        self._finish_reason = finish_reason if finish_reason in _FINISH_REASONS else _OTHER
        self.usage = usage

    def failed(self, exc: BaseException) -> None:
        """Count a request that ended without a finish reason of its own."""
        reason = "error" if isinstance(exc, Exception) else "abort"
        self._metrics.request_ended(self._model, self._version, reason)

    def completed(self) -> None:
        """Count a request that was answered, by how its last choice ended."""
        self._metrics.request_ended(self._model, self._version, self._finish_reason)
        self._latencies.duration.observe(time.monotonic() - self._arrived)
