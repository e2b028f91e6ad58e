"""Drawing from a distribution, whole or cut by top_k, top_p and min_p, without sorting it.

Weights are exp(logit - largest logit), so the likeliest token's is 1. What a row draws depends on
that row alone: the arithmetic is the same whatever other rows it is called with.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from headrace.generation import SamplingParams

CHUNK = 256  # tokens; rows are padded to a multiple of it with weights of 0

Weights = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_TINY = float(np.finfo(np.float32).smallest_subnormal)


class Limits(NamedTuple):
    """How each row is cut; 0, 1 and 0 are off."""

    top_k: Ints
    top_p: Floats
    min_p: Floats

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int) -> Self:
        top_k = np.array([p.top_k for p in params], dtype=np.int64)
        return cls(
            np.where(top_k < vocab_size, top_k, 0),
            np.array([p.top_p for p in params], dtype=np.float64),
            np.array([p.min_p for p in params], dtype=np.float64),
        )

    @property
    def cut(self) -> NDArray[np.bool]:
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    def rows(self, rows: Ints) -> "Limits":
        return Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(weights: Weights, uniforms: Floats) -> Ints:
    """Draw a token from each whole row: first its chunk, then the token in it."""
    num_rows = len(weights)
    chunks = weights.reshape(num_rows, -1, CHUNK)
    chosen, rest = _pick(chunks.sum(axis=-1), uniforms)
    within, _ = _pick(chunks[np.arange(num_rows), chosen], rest)
    return chosen * CHUNK + within


def draw_truncated(weights: Weights, uniforms: Floats, limits: Limits, vocab_size: int) -> Ints:
    """Draw a token from each row cut by min_p, then top_k, then top_p of what those leave.

    Tokens of equal weight at the edge are kept by lowest id.
    """
    totals = weights.sum(axis=-1, dtype=np.float32).astype(np.float64)
    by_mass = (limits.top_k == 0) & (limits.min_p == 0)  # only top_p cuts
    # Tokens lighter than (1 - top_p) / vocab_size weigh less than 1 - top_p together.
    floors = np.where(by_mass, (1 - limits.top_p) * totals / vocab_size, limits.min_p)
    floors = np.maximum(floors, _top_k_floors(weights, limits.top_k))
    kept, ids = _compact(weights, floors * (1 - 1e-6))
    _cut(kept, limits, np.where(by_mass, totals, 0))
    chosen, _ = _pick(kept, uniforms)
    return ids[np.arange(len(ids)), chosen]


def _pick(weights: Weights, uniforms: Floats) -> tuple[Ints, Floats]:
    """Index of the weight in which each number falls, and the number's place within it."""
    sums = np.cumsum(weights, axis=-1, dtype=np.float64)
    totals = sums[:, -1]
    points = np.minimum(uniforms * totals, np.nextafter(totals, 0))
    chosen = np.count_nonzero(sums <= points[:, None], axis=-1)
    rows = np.arange(len(weights))
    ends, sizes = sums[rows, chosen], weights[rows, chosen].astype(np.float64)
    return chosen, np.clip(1 - (ends - points) / sizes, 0.0, 1.0)


def _top_k_floors(weights: Weights, top_k: Ints) -> Floats:
    """A weight that at least k tokens reach: the k-th largest of the chunks' largest."""
    floors = np.zeros(len(weights))
    limited = np.flatnonzero(top_k)
    if not len(limited):
        return floors
    maxima = weights[limited].reshape(len(limited), -1, CHUNK).max(axis=-1)
    maxima.sort(axis=-1)
    k = top_k[limited]
    num_chunks = maxima.shape[1]
    within = k <= num_chunks
    floors[limited] = np.where(within, maxima[np.arange(len(k)), np.maximum(num_chunks - k, 0)], 0)
    for row, row_k in zip(limited[~within], k[~within], strict=True):
        at = max(0, weights.shape[1] - int(row_k))
        floors[row] = np.partition(weights[row], at)[at]
    return floors


def _compact(weights: Weights, floors: Floats) -> tuple[Weights, Ints]:
    """Each row's tokens of at least its floor, in order of id, padded with weights of 0."""
    num_rows, width = weights.shape
    floors = np.maximum(floors, _TINY)
    found = np.flatnonzero(weights >= floors[:, None].astype(np.float32))
    rows = found // width
    counts = np.bincount(rows, minlength=num_rows)
    places = np.arange(len(found)) - (np.cumsum(counts) - counts)[rows]
    kept = np.zeros((num_rows, counts.max()), dtype=np.float32)
    ids = np.zeros(kept.shape, dtype=np.int64)
    kept[rows, places] = weights.ravel()[found]
    ids[rows, places] = found - rows * width
    return kept, ids


def _cut(kept: Weights, limits: Limits, totals: Floats) -> None:
    """Set the weights that the limits leave out to 0; a total of 0 stands for what is left."""
    rows = np.arange(len(kept))
    top_k, top_p, min_p = limits
    falling = np.sort(kept, axis=-1)[:, ::-1]
    sums = np.cumsum(falling, axis=-1, dtype=np.float64)
    lengths = np.count_nonzero((falling >= min_p[:, None]) & (falling > 0), axis=-1)
    lengths = np.maximum(1, np.where(top_k > 0, np.minimum(lengths, top_k), lengths))
    masses = np.where(totals > 0, totals, sums[rows, lengths - 1])
    nucleus = np.count_nonzero(sums < (top_p * masses)[:, None], axis=-1) + 1
    lengths = np.where(top_p < 1, np.minimum(lengths, nucleus), lengths)
    edges = falling[rows, lengths - 1][:, None]
    num_ties = (lengths - np.count_nonzero(falling > edges, axis=-1))[:, None]
    ties = kept == edges
    kept[(kept < edges) | (ties & (np.cumsum(ties, axis=-1) > num_ties))] = 0
