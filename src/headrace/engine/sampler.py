"""Chooses each row's next token from its logits. Knows nothing of text or scheduling.

Rows are worked on a few at a time: each pass over them then stays in the processor's cache.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.engine import penalties, truncation
from headrace.engine.random_numbers import uniforms
from headrace.engine.sampling_state import SamplingState

_ROWS_AT_ONCE = 8

Logits = NDArray[np.float32]
Ints = NDArray[np.int64]


class Sampler:
    """Owns the scratch space of one model's vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        width = -(-vocab_size // truncation.CHUNK) * truncation.CHUNK
        self._scratch = np.empty((_ROWS_AT_ONCE, width), dtype=np.float32)

    def sample(
        self, states: Sequence[SamplingState], positions: Sequence[int], logits: Logits
    ) -> list[int]:
        """A token for each row of `logits`, row i being token `positions[i]` of its answer."""
        chosen: list[int] = []
        for start in range(0, len(states), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            chosen += self._sample(states[rows], positions[rows], logits[rows]).tolist()
        return chosen

    def _sample(
        self, states: Sequence[SamplingState], positions: Sequence[int], logits: Logits
    ) -> Ints:
        scaled = self._scratch[: len(states)]
        scaled[:, : self._vocab_size] = logits
        scaled[:, self._vocab_size :] = -np.inf
        _adjust(scaled, states, positions)
        largest = scaled.max(axis=-1, keepdims=True)
        if not np.isfinite(largest).all():
            raise ArithmeticError("the model's logits are not finite")
        temperatures = np.array([state.params.temperature for state in states], dtype=np.float32)
        chosen = np.empty(len(states), dtype=np.int64)
        if len(greedy := np.flatnonzero(temperatures == 0)):
            chosen[greedy] = scaled[greedy].argmax(axis=-1)
        if len(drawn := np.flatnonzero(temperatures)):
            np.subtract(scaled, largest, out=scaled)
            with np.errstate(over="ignore"):  # a tiny temperature makes all but the best impossible
                np.multiply(scaled, _inverse(temperatures)[:, None], out=scaled)
            self._draw(scaled, states, positions, drawn, chosen)
        return chosen

    def _draw(
        self,
        logits: Logits,
        states: Sequence[SamplingState],
        positions: Sequence[int],
        drawn: Ints,
        chosen: Ints,
    ) -> None:
        limits = truncation.Limits.of([states[row].params for row in drawn], self._vocab_size)
        keys = np.array([states[row].key for row in drawn], dtype=np.uint64)
        numbers = uniforms(keys, np.array([positions[row] for row in drawn], dtype=np.uint64))
        by_rank, by_mass = limits.by_rank, limits.by_mass
        if len(some := np.flatnonzero(by_rank)):
            chosen[drawn[some]] = truncation.draw_by_rank(
                _take(logits, drawn[some]), numbers[some], limits.rows(some)
            )
        if len(some := np.flatnonzero(by_mass)):
            chosen[drawn[some]] = truncation.draw_by_mass(
                _weights(logits, drawn[some]), numbers[some], limits.rows(some), self._vocab_size
            )
        if len(some := np.flatnonzero(~(by_rank | by_mass))):
            chosen[drawn[some]] = truncation.draw(_weights(logits, drawn[some]), numbers[some])


def _adjust(logits: Logits, states: Sequence[SamplingState], positions: Sequence[int]) -> None:
    """Apply what the requests ask for in vLLM's order: biases, forbidden stops, penalties."""
    biased = [row for row, state in enumerate(states) if len(state.bias_ids)]
    penalties.add_biases(
        logits,
        biased,
        [states[row].bias_ids for row in biased],
        [states[row].bias_values for row in biased],
    )
    early = [row for row, state in enumerate(states) if positions[row] < state.min_tokens]
    penalties.forbid(logits, early, [states[row].stop_ids for row in early])
    counted = [(row, state.counts) for row, state in enumerate(states) if state.counts is not None]
    penalties.penalize(
        logits,
        [row for row, _ in counted],
        [counts for _, counts in counted],
        [
            (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
            for p in (states[row].params for row, _ in counted)
        ],
    )


def _inverse(temperatures: Logits) -> Logits:
    """1 / temperature, bounded so that a tiny one leaves the best token; 1 for greedy rows."""
    temperatures = np.where(temperatures > 0, temperatures, np.float32(1))
    return np.reciprocal(np.maximum(temperatures, np.float32(1e-30)))


def _take(logits: Logits, rows: Ints) -> Logits:
    return logits if len(rows) == len(logits) else logits[rows]


def _weights(logits: Logits, rows: Ints) -> Logits:
    """Exponentials of the rows, in place when they are all of them."""
    taken = _take(logits, rows)
    return np.exp(taken, out=taken)
