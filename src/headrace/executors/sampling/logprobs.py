"""Log-probabilities of the model's own distribution, before temperature, penalties and cuts."""

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Logprobs

_ROWS_AT_ONCE = 8


def logprobs_of(
    logits: NDArray[np.float32],  # (num_rows, vocab_size)
    token_ids: NDArray[np.int32],
    num_top: NDArray[np.int32],
) -> Logprobs | None:
    """The log-probability of each row's token and that row's `num_top` likeliest.

    Rows of -1 are left out; None when there are no others.
    """
    wanted = np.flatnonzero(num_top >= 0)
    if not len(wanted):
        return None
    chosen = np.zeros(len(logits), dtype=np.float32)
    top_ids = np.full((len(logits), int(num_top.max())), -1, dtype=np.int32)
    top = np.zeros(top_ids.shape, dtype=np.float32)
    normalizers = log_normalizers(logits[wanted])
    chosen[wanted] = logits[wanted, token_ids[wanted]] - normalizers
    for row, normalizer in zip(wanted.tolist(), normalizers, strict=True):
        ids = _likeliest(logits[row], int(num_top[row]))
        top_ids[row, : len(ids)] = ids
        top[row, : len(ids)] = logits[row, ids] - normalizer
    return Logprobs(chosen, top_ids, top)


def log_normalizers(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """log(sum(exp(logits))) of each row, a few rows at a time to stay in the processor's cache."""
    normalizers = np.empty(len(logits))
    for start in range(0, len(logits), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE]
        largest = rows.max(axis=-1, keepdims=True)
        sums = np.exp(rows - largest).sum(axis=-1)
        normalizers[start : start + _ROWS_AT_ONCE] = np.log(sums) + largest[:, 0]
    return normalizers


def _likeliest(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The `count` likeliest tokens in falling order, the lowest id first on a tie."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    count = min(count, len(row))
    edge = np.partition(row, len(row) - count)[len(row) - count]
    candidates = np.flatnonzero(row >= edge)
    order = np.argsort(-row[candidates], kind="stable")
    return candidates[order[:count]]
