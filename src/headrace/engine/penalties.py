"""Changes to logits that depend on the sequence: biases, penalties, tokens not allowed yet."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """The distinct tokens of a sequence and how often each occurs in its answer."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._slots = {token_id: slot for slot, token_id in enumerate(ids.tolist())}
        self._ids = ids
        self._counts = np.zeros(len(ids), dtype=np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._slots)]

    def add(self, token_id: int) -> None:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._grow()
        self._ids[slot] = token_id
        self._counts[slot] += 1

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(more, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.float32)])


def add_biases(
    logits: NDArray[np.float32],  # (num_rows, vocab_size), changed
    rows: Sequence[int],
    ids: Sequence[NDArray[np.int64]],
    values: Sequence[NDArray[np.float32]],
) -> None:
    """Add `values[i]` to the tokens `ids[i]` of row `rows[i]`."""
    if rows:
        lengths = [len(row_ids) for row_ids in ids]
        logits[np.repeat(rows, lengths), np.concatenate(ids)] += np.concatenate(values)


def forbid(
    logits: NDArray[np.float32], rows: Sequence[int], ids: Sequence[NDArray[np.int64]]
) -> None:
    """Make the tokens `ids[i]` of row `rows[i]` impossible."""
    if rows:
        lengths = [len(row_ids) for row_ids in ids]
        logits[np.repeat(rows, lengths), np.concatenate(ids)] = -np.inf


def penalize(
    logits: NDArray[np.float32],  # (num_rows, vocab_size), changed
    rows: Sequence[int],
    counts: Sequence[TokenCounts],
    penalties: Sequence[tuple[float, float, float]],  # repetition, presence, frequency
) -> None:
    """Lower the logits of tokens that occurred, with the meaning these penalties have in vLLM.

    Repetition looks at prompt and answer, presence and frequency at the answer alone.
    """
    if not rows:
        return
    lengths = [len(row_counts.ids) for row_counts in counts]
    at = np.repeat(rows, lengths), np.concatenate([row_counts.ids for row_counts in counts])
    occurrences = np.concatenate([row_counts.counts for row_counts in counts])
    table = np.repeat(np.array(penalties, dtype=np.float32), lengths, axis=0)
    repetition, presence, frequency = table[:, 0], table[:, 1], table[:, 2]
    values = logits[at]
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= frequency * occurrences + presence * (occurrences > 0)
    logits[at] = values
