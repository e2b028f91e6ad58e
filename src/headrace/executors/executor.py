"""The seam between scheduling and arithmetic: a batch of plain data in, tokens or logits out.

Knows nothing of requests, sampling or text. One executor owns one model's weights and KV cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[str, float], None]
"""Called with a phase (reading, packing, compiling, warming) and its share done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward's work over ragged sequences, their new tokens one after another.

    Sequence i computes `num_new_tokens[i]` tokens at positions from `num_computed_tokens[i]` on;
    its KV lives in `block_tables[i]`, which already holds room for the new tokens. `rows` index
    `token_ids`: the tokens after which a prediction is wanted, in rising order.
    """

    token_ids: NDArray[np.int32]  # (num_tokens,)
    num_new_tokens: NDArray[np.int32]  # (num_seqs,)
    num_computed_tokens: NDArray[np.int32]  # (num_seqs,)
    block_tables: Sequence[Sequence[int]]  # (num_seqs, ragged)
    rows: NDArray[np.int32]  # (num_rows,)
    want_logits: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Predictions for a batch's rows; `logits` only when asked for, valid until the next step."""

    greedy: NDArray[np.int32]  # (num_rows,) likeliest token, the lowest id on a tie
    logits: NDArray[np.float32] | None  # (num_rows, vocab_size)


class Executor(Protocol):
    """Runs batches of one model. Not thread-safe: one caller, one step at a time."""

    @property
    def name(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def kv_cache_precision(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def execute(self, batch: Batch) -> Output:
        """Run one step; ValueError when the batch names a token or block that does not exist."""
        ...

    def close(self) -> None: ...
