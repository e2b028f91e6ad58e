"""Changes to logits that depend on the sequence: biases, penalties, tokens not allowed yet."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Edits
from headrace.generation import SamplingParams


class TokenEdits:
    """One sequence's edits, kept up to date as its answer grows.

    In their order: stops that may not be chosen before `min_tokens`, biases, and a penalty for each
    token that occurred, with the meaning these have in vLLM: repetition looks at prompt and answer,
    presence and frequency at the answer alone.
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], stop_ids: Iterable[int]
    ) -> None:
        self._penalties = (
            np.float32(params.repetition_penalty),
            np.float32(params.presence_penalty),
            np.float32(params.frequency_penalty),
        )
        stops = list(stop_ids) if params.min_tokens else []
        repeated = [] if params.repetition_penalty == 1.0 else sorted(set(prompt_ids))
        biases = params.logit_bias
        first = len(stops) + len(biases)
        self._min_tokens, self._num_stops = params.min_tokens, len(stops)
        self._slots = {token_id: first + slot for slot, token_id in enumerate(repeated)}
        self._size = first + len(repeated)
        self._ids = np.array([*stops, *biases, *repeated], dtype=np.int32)
        self._repetitions = np.ones(self._size, dtype=np.float32)
        self._repetitions[first:] = self._penalties[0]
        self._terms = np.zeros(self._size, dtype=np.float32)
        self._terms[: len(stops)] = -np.inf
        self._terms[len(stops) : first] = list(biases.values())
        self._counts = dict[int, int]()

    def add(self, token_id: int) -> None:
        """Count a token of the answer."""
        repetition, presence, frequency = self._penalties
        if repetition == 1 and not presence and not frequency:
            return
        slot = self._slots.setdefault(token_id, self._size)
        if slot == self._size:
            self._size += 1
            if slot == len(self._ids):
                self._grow()
            self._ids[slot] = token_id
            self._repetitions[slot] = repetition
        count = self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._terms[slot] = -(frequency * np.float32(count) + presence)

    def at(self, position: int) -> slice:
        """Which of the arrays hold for token `position` of the answer."""
        return slice(0 if position < self._min_tokens else self._num_stops, self._size)

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """Token ids, repetition penalties and terms, as `Edits` has them; longer than needed."""
        return self._ids, self._repetitions, self._terms

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(more, dtype=np.int32)])
        self._repetitions = np.concatenate([self._repetitions, np.zeros(more, dtype=np.float32)])
        self._terms = np.concatenate([self._terms, np.zeros(more, dtype=np.float32)])


def join(rows: Sequence[TokenEdits | None], positions: Sequence[int]) -> Edits | None:
    """The edits of a batch's rows; None when there are none."""
    parts = [
        (row, edits.at(position), edits.arrays)
        for row, (edits, position) in enumerate(zip(rows, positions, strict=True))
        if edits is not None
    ]
    if not parts:
        return None
    begins = np.zeros(len(rows) + 1, dtype=np.int32)
    for row, span, _ in parts:
        begins[row + 1] = span.stop - span.start
    return Edits(
        np.cumsum(begins, dtype=np.int32),
        np.concatenate([arrays[0][span] for _, span, arrays in parts]),
        np.concatenate([arrays[1][span] for _, span, arrays in parts]),
        np.concatenate([arrays[2][span] for _, span, arrays in parts]),
    )
