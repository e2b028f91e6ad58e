"""Drawing from a distribution, whole or cut by top_k, top_p and min_p, without sorting it.

Logits come divided by the temperature and with 0 as each row's largest; weights are their
exponentials. What a row draws depends on that row alone: the arithmetic is the same whatever other
rows it is called with.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 256  # tokens; rows are padded to a multiple of it with impossible ones

Logits = NDArray[np.float32]
Weights = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_TINY = float(np.finfo(np.float32).smallest_subnormal)
_IMPOSSIBLE = -104.0  # its exponential is under every float32


class Limits(NamedTuple):
    """How each row is cut; 0, 1 and 0 are off."""

    top_k: Ints
    top_p: Floats
    min_p: Floats

    @property
    def by_mass(self) -> NDArray[np.bool]:
        """Rows that top_p alone cuts."""
        return ~self.by_rank & (self.top_p < 1)

    @property
    def by_rank(self) -> NDArray[np.bool]:
        """Rows that top_k or min_p cut, and perhaps top_p what they leave."""
        return (self.top_k > 0) | (self.min_p > 0)

    def rows(self, rows: Ints) -> "Limits":
        return Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(weights: Weights, uniforms: Floats) -> Ints:
    """Draw a token from each whole row: first its chunk, then the token in it."""
    num_rows = len(weights)
    chunks = weights.reshape(num_rows, -1, CHUNK)
    chosen, rest = _pick(chunks.sum(axis=-1), uniforms)
    within, _ = _pick(chunks[np.arange(num_rows), chosen], rest)
    return chosen * CHUNK + within


def draw_by_mass(weights: Weights, uniforms: Floats, limits: Limits, vocab_size: int) -> Ints:
    """Draw from the fewest likeliest tokens of each row that weigh top_p of all together."""
    totals = weights.sum(axis=-1, dtype=np.float32).astype(np.float64)
    # Tokens lighter than (1 - top_p) / vocab_size weigh less than 1 - top_p together.
    floors = (1 - limits.top_p) * totals / vocab_size * (1 - 1e-6)
    kept, ids = _compact(weights, np.maximum(floors, _TINY), padding=0)
    _cut(kept, limits, totals)
    return _draw_kept(kept, ids, uniforms)


def draw_by_rank(logits: Logits, uniforms: Floats, limits: Limits) -> Ints:
    """Draw from what min_p, then top_k, then top_p of the rest leave of each row."""
    with np.errstate(divide="ignore"):
        floors = np.log(limits.min_p) - 1e-6
    floors = np.maximum(floors, _top_k_floors(logits, limits.top_k))
    kept, ids = _compact(logits, np.maximum(floors, _IMPOSSIBLE), padding=-np.inf)
    np.exp(kept, out=kept)
    _cut(kept, limits, None)
    return _draw_kept(kept, ids, uniforms)


def _draw_kept(kept: Weights, ids: Ints, uniforms: Floats) -> Ints:
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


def _top_k_floors(logits: Logits, top_k: Ints) -> Floats:
    """A logit that at least k tokens reach: the k-th largest of the chunks' largest."""
    num_chunks = logits.shape[1] // CHUNK
    floors = np.full(len(logits), -np.inf)
    if (top_k > 0).any():
        maxima = np.sort(logits.reshape(len(logits), -1, CHUNK).max(axis=-1), axis=-1)
        easy = np.flatnonzero((top_k > 0) & (top_k <= num_chunks))
        floors[easy] = maxima[easy, num_chunks - top_k[easy]]
    for row in np.flatnonzero(top_k > num_chunks):
        at = max(0, logits.shape[1] - int(top_k[row]))
        floors[row] = np.partition(logits[row], at)[at]
    return floors


def _compact(values: Logits, floors: Floats, *, padding: float) -> tuple[Logits, Ints]:
    """Each row's values that reach its floor, in order of token id, and those ids; padded."""
    num_rows, width = values.shape
    found = np.flatnonzero(values >= floors[:, None].astype(np.float32))
    rows = found // width
    counts = np.bincount(rows, minlength=num_rows)
    places = np.arange(len(found)) - (np.cumsum(counts) - counts)[rows]
    kept = np.full((num_rows, counts.max()), padding, dtype=np.float32)
    ids = np.zeros(kept.shape, dtype=np.int64)
    kept[rows, places] = values.ravel()[found]
    ids[rows, places] = found - rows * width
    return kept, ids


def _cut(kept: Weights, limits: Limits, totals: Floats | None) -> None:
    """Set the weights that the limits leave out to 0; top_p is of `totals` or of what is left.

    Tokens of equal weight at the edge are kept by lowest id.
    """
    rows = np.arange(len(kept))
    top_k, top_p, min_p = limits
    falling = np.sort(kept, axis=-1)[:, ::-1]
    sums = np.cumsum(falling, axis=-1, dtype=np.float64)
    lengths = np.count_nonzero((falling >= min_p[:, None]) & (falling > 0), axis=-1)
    lengths = np.maximum(1, np.where(top_k > 0, np.minimum(lengths, top_k), lengths))
    masses = sums[rows, lengths - 1] if totals is None else totals
    nucleus = np.count_nonzero(sums < (top_p * masses)[:, None], axis=-1) + 1
    lengths = np.where(top_p < 1, np.minimum(lengths, nucleus), lengths)
    edges = falling[rows, lengths - 1][:, None]
    num_ties = (lengths - np.count_nonzero(falling > edges, axis=-1))[:, None]
    ties = kept == edges
    kept[(kept < edges) | (ties & (np.cumsum(ties, axis=-1) > num_ties))] = 0
