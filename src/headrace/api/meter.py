"""Measures one generation request while its chunks pass: latencies, tokens, how it ended."""

import time

from headrace.generation import Chunk, Usage
from headrace.telemetry.metrics import Metrics


class Meter:
    """Counts for one model version; `num_choices` sequences share a prompt."""

    def __init__(
        self, metrics: Metrics, model_id: str, *, arrived: float, num_choices: int
    ) -> None:
        self.model, _, self.version = model_id.rpartition("@")
        self._metrics = metrics
        self._latencies = metrics.latencies(self.model, self.version)
        self._observe_gap = self._latencies.inter_token_latency.observe
        self._arrived = arrived
        self._num_choices = num_choices
        self.ttft: float | None = None
        self._last_token: dict[int, float] = {}
        self._usage: dict[int, Usage] = {}
        self._is_usage_known = True
        self._num_tokens: dict[int, int] = {}  # by choice, as they pass
        self._finish_reason = "stop"

    def observe(self, chunk: Chunk) -> None:
        num_tokens = len(chunk.token_ids)
        if num_tokens or chunk.text:  # an upstream may tell no tokens
            self._num_tokens[chunk.index] = self._num_tokens.get(chunk.index, 0) + num_tokens
            now = time.monotonic()
            last = self._last_token.get(chunk.index)
            if last is not None:
                num_pieces = num_tokens or 1
                self._observe_gap((now - last) / num_pieces, num_pieces)
            elif not self._last_token:
                self.ttft = now - self._arrived
                self._latencies.time_to_first_token.observe(self.ttft)
            self._last_token[chunk.index] = now
        if chunk.finish_reason is not None:
            self._finish(chunk, chunk.finish_reason)

    def failed(self, exc: BaseException) -> None:
        """Count a request that ended without a finish reason of its own."""
        reason = "error" if isinstance(exc, Exception) else "abort"
        self._metrics.request_ended(self.model, self.version, reason)

    def completed(self) -> None:
        """Count a request that was answered, once, by how its last choice ended."""
        self._metrics.request_ended(self.model, self.version, self._finish_reason)
        self._latencies.duration.observe(time.monotonic() - self._arrived)

    @property
    def num_generated(self) -> int:
        """Tokens that are known to have come, whether or not the answer was completed."""
        return sum(self._num_tokens.values())

    @property
    def usage(self) -> Usage | None:
        """Tokens so far, unless a choice's are not known; those of one prompt share its tokens."""
        if not self._is_usage_known:
            return None
        firsts = {index // self._num_choices: usage for index, usage in self._usage.items()}
        return Usage(
            prompt_tokens=sum(u.prompt_tokens for u in firsts.values()),
            completion_tokens=sum(u.completion_tokens for u in self._usage.values()),
            cached_tokens=sum(u.cached_tokens for u in firsts.values()),
        )

    def _finish(self, chunk: Chunk, reason: str) -> None:
        self._finish_reason = reason
        if chunk.usage is None:
            self._is_usage_known = False
        else:
            self._usage[chunk.index] = chunk.usage
            self._num_tokens[chunk.index] = chunk.usage.completion_tokens
        if chunk.timing is not None and chunk.timing.queue_time is not None:
            self._latencies.queue.observe(chunk.timing.queue_time)
