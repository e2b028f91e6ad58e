"""Log-probabilities of the model's own distribution, before temperature, penalties and cuts."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.generation import TokenLogprob, TopLogprob

_ROWS_AT_ONCE = 8


def token_logprobs(
    logits: NDArray[np.float32],  # (num_rows, vocab_size)
    token_ids: Sequence[int],
    num_top: Sequence[int],
    token_bytes: Callable[[int], bytes],
) -> list[TokenLogprob]:
    """The log-probability of each row's token, with that row's `num_top` likeliest."""
    normalizers = log_normalizers(logits)
    return [
        TokenLogprob(
            token_id,
            token_bytes(token_id),
            float(row[token_id] - normalizer),
            [
                TopLogprob(top_id, token_bytes(top_id), float(row[top_id] - normalizer))
                for top_id in _likeliest(row, count)
            ],
        )
        for row, token_id, count, normalizer in zip(
            logits, token_ids, num_top, normalizers, strict=True
        )
    ]


def log_normalizers(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """log(sum(exp(logits))) of each row, a few rows at a time to stay in the processor's cache."""
    normalizers = np.empty(len(logits))
    for start in range(0, len(logits), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE]
        largest = rows.max(axis=-1, keepdims=True)
        sums = np.exp(rows - largest).sum(axis=-1)
        normalizers[start : start + _ROWS_AT_ONCE] = np.log(sums) + largest[:, 0]
    return normalizers


def _likeliest(row: NDArray[np.float32], count: int) -> list[int]:
    """The `count` likeliest tokens in falling order, the lowest id first on a tie."""
    if count == 0:
        return []
    count = min(count, len(row))
    edge = np.partition(row, len(row) - count)[len(row) - count]
    candidates = np.flatnonzero(row >= edge)
    order = np.argsort(-row[candidates], kind="stable")
    found: list[int] = candidates[order[:count]].tolist()
    return found
