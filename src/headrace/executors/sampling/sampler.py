"""Chooses each row's next token from its logits. Knows nothing of requests or the model.

Rows are worked on a few at a time: each pass over them then stays in the processor's cache.
"""

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Edits, Sampling
from headrace.executors.sampling import truncation

_ROWS_AT_ONCE = 8

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Sampler:
    """Owns the scratch space of one model's vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        width = -(-vocab_size // truncation.CHUNK) * truncation.CHUNK
        self._scratch = np.empty((_ROWS_AT_ONCE, width), dtype=np.float32)

    def sample(self, sampling: Sampling, logits: Logits) -> NDArray[np.int32]:
        """A token for each row of `logits`; ValueError when one leaves none to choose."""
        chosen = sampling.targets.copy()
        rows = np.flatnonzero(chosen < 0)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            chosen[some] = self._sample(sampling, some, logits)
        return chosen

    def _sample(self, sampling: Sampling, rows: Ints, logits: Logits) -> Ints:
        scaled = self._scratch[: len(rows)]
        scaled[:, : self._vocab_size] = logits[rows]
        scaled[:, self._vocab_size :] = -np.inf
        if sampling.edits is not None:
            _apply(sampling.edits, rows, scaled)
        largest = scaled.max(axis=-1, keepdims=True)
        if not np.isfinite(largest).all():
            raise ValueError("the model's logits are not finite, or no token is possible")
        temperatures = sampling.temperatures[rows]
        chosen = np.empty(len(rows), dtype=np.int64)
        if len(greedy := np.flatnonzero(temperatures == 0)):
            chosen[greedy] = scaled[greedy].argmax(axis=-1)
        if len(drawn := np.flatnonzero(temperatures)):
            np.subtract(scaled, largest, out=scaled)
            with np.errstate(over="ignore"):  # a tiny temperature makes all but the best impossible
                np.multiply(scaled, _inverse(temperatures)[:, None], out=scaled)
            chosen[drawn] = self._draw(scaled[drawn], sampling, rows[drawn])
        return chosen

    def _draw(self, logits: Logits, sampling: Sampling, rows: Ints) -> Ints:
        top_k = sampling.top_k[rows].astype(np.int64)
        top_k[top_k >= self._vocab_size] = 0
        limits = truncation.Limits(top_k, sampling.top_p[rows], sampling.min_p[rows])
        numbers = sampling.uniforms[rows]
        by_rank, by_mass = limits.by_rank, limits.by_mass
        chosen = np.empty(len(rows), dtype=np.int64)
        if len(some := np.flatnonzero(by_rank)):
            chosen[some] = truncation.draw_by_rank(logits[some], numbers[some], limits.rows(some))
        if len(some := np.flatnonzero(by_mass)):
            chosen[some] = truncation.draw_by_mass(
                np.exp(logits[some]), numbers[some], limits.rows(some), self._vocab_size
            )
        if len(some := np.flatnonzero(~(by_rank | by_mass))):
            chosen[some] = truncation.draw(np.exp(logits[some]), numbers[some])
        return chosen


def _apply(edits: Edits, rows: Ints, logits: Logits) -> None:
    """Change the logits; several edits of one logit are applied in their order."""
    begins, ends = edits.begins[rows], edits.begins[rows + 1]
    which = np.concatenate([np.arange(*span) for span in zip(begins, ends, strict=True)])
    places = np.repeat(np.arange(len(rows)), ends - begins), edits.token_ids[which]
    keys = places[0] * logits.shape[1] + places[1]
    left = np.arange(len(which))
    while len(left):
        _, first = np.unique(keys[left], return_index=True)
        now = left[first]
        at = places[0][now], places[1][now]
        repetitions, terms = edits.repetitions[which[now]], edits.terms[which[now]]
        values = logits[at]
        logits[at] = np.where(values > 0, values / repetitions, values * repetitions) + terms
        left = np.delete(left, first)


def _inverse(temperatures: Floats) -> Logits:
    """1 / temperature, bounded so that a tiny one leaves the best token; 1 for greedy rows."""
    temperatures = np.where(temperatures > 0, temperatures, 1.0)
    return np.reciprocal(np.maximum(temperatures, 1e-30)).astype(np.float32)
