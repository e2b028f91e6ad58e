"""One step's inputs: a batch, checked and written as the graph's integer arrays."""

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Batch

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What exists: an index beyond these is a segmentation fault in the plugin."""

    vocab_size: int
    num_blocks: int
    block_size: int
    max_model_len: int


def step_inputs(batch: Batch, limits: Limits) -> dict[str, Ints]:
    """The graph's inputs by name; ValueError names what does not exist."""
    new, past = batch.num_new_tokens, batch.num_computed_tokens
    num_seqs = len(new)
    if num_seqs == 0 or len(past) != num_seqs or len(batch.block_tables) != num_seqs:
        raise ValueError(
            f"a batch of {num_seqs} sequences has {len(past)} counts of computed tokens"
            f" and {len(batch.block_tables)} block tables"
        )
    lengths = past + new
    begins = _begins(new)
    table_sizes = np.fromiter(map(len, batch.block_tables), np.int32, num_seqs)
    table_begins = _begins(table_sizes)
    blocks = np.fromiter(chain.from_iterable(batch.block_tables), np.int32, int(table_begins[-1]))
    _check_counts(batch, lengths, table_sizes * limits.block_size, limits)
    _check_range("token id", batch.token_ids, limits.vocab_size)
    _check_range("block", blocks, limits.num_blocks)
    _check_rows(batch.rows, len(batch.token_ids))
    positions = np.arange(begins[-1], dtype=np.int32) + np.repeat(past - begins[:-1], new)
    return {
        "token_ids": batch.token_ids,
        "positions": positions,
        "rows": batch.rows,
        "past_lens": past,
        "subsequence_begins": begins,
        "block_indices": blocks,
        "block_indices_begins": table_begins,
        "max_context_len": lengths.max(),
    }


def _begins(counts: Ints) -> Ints:
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins


def _check_counts(batch: Batch, lengths: Ints, room: Ints, limits: Limits) -> None:
    new, past = batch.num_new_tokens, batch.num_computed_tokens
    if new.min() < 1 or past.min() < 0 or new.sum() != len(batch.token_ids):
        raise ValueError(
            f"{len(batch.token_ids)} token ids, but num_new_tokens is {new.tolist()}"
            f" and num_computed_tokens {past.tolist()}"
        )
    if lengths.max() > limits.max_model_len:
        raise ValueError(f"position {lengths.max() - 1} is beyond {limits.max_model_len} tokens")
    if (lengths > room).any():
        index = int((lengths > room).argmax())
        raise ValueError(
            f"sequence {index} has {lengths[index]} tokens, but its block table holds {room[index]}"
        )


def _check_range(what: str, values: Ints, size: int) -> None:
    if values.min() < 0 or values.max() >= size:
        wrong = values[(values < 0) | (values >= size)][0]
        raise ValueError(f"{what} {wrong} does not exist: there are {size}")


def _check_rows(rows: Ints, num_tokens: int) -> None:
    if len(rows) and (rows[0] < 0 or rows[-1] >= num_tokens or (rows[1:] <= rows[:-1]).any()):
        raise ValueError(f"rows {rows.tolist()} must rise within {num_tokens} tokens")
