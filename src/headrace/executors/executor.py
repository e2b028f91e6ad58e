"""The seam between scheduling and arithmetic: a batch of plain data in, tokens out.

Knows nothing of requests or text. One executor owns one model's weights and KV cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[str, float], None]
"""Called with a phase (reading, packing, compiling, warming) and its share done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes to single logits ahead of sampling, applied one after another.

    Row i's are those from `begins[i]` to `begins[i + 1]`. A logit x becomes
    (x / repetition if x > 0 else x * repetition) + term; a term may be minus infinity.
    """

    begins: NDArray[np.int32]  # (num_rows + 1,)
    token_ids: NDArray[np.int32]
    repetitions: NDArray[np.float32]
    terms: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How each row's token is chosen; every column is (num_rows,).

    Edits come first, then temperature, min_p, top_k, top_p of what these leave, and the token at
    `uniforms` of the mass that is left. A target is taken instead, so that its log-probability can
    be asked for. Log-probabilities are the model's own: before edits, temperature and cuts.
    """

    temperatures: NDArray[np.float64]  # 0: the likeliest
    top_p: NDArray[np.float64]  # 1: off
    min_p: NDArray[np.float64]  # 0: off
    uniforms: NDArray[np.float64]  # random, in [0, 1)
    top_k: NDArray[np.int32]  # 0: off
    num_top: NDArray[np.int32]  # how many of the likeliest to name; -1: no log-probabilities at all
    targets: NDArray[np.int32]  # -1: choose
    edits: Edits | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward's work over ragged sequences, their new tokens one after another.

    Sequence i computes `num_new_tokens[i]` tokens at positions from `num_computed_tokens[i]` on;
    its KV lives in `block_tables[i]`, which already holds room for the new tokens. `rows` index
    `token_ids`: the tokens after which a prediction is wanted, in rising order. Without `sampling`
    every prediction is the likeliest token. Logits are for evaluation, such as perplexity, and for
    tests; the engine asks for none.
    """

    token_ids: NDArray[np.int32]  # (num_tokens,)
    num_new_tokens: NDArray[np.int32]  # (num_seqs,)
    num_computed_tokens: NDArray[np.int32]  # (num_seqs,)
    block_tables: Sequence[Sequence[int]]  # (num_seqs, ragged)
    rows: NDArray[np.int32]  # (num_rows,)
    sampling: Sampling | None = None
    want_logits: bool = False


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms; meaningless where a row asked for none, or for fewer."""

    chosen: NDArray[np.float32]  # (num_rows,)
    top_ids: NDArray[np.int32]  # (num_rows, largest num_top) likeliest first, lowest id on a tie
    top: NDArray[np.float32]  # (num_rows, largest num_top)


@dataclass(frozen=True, slots=True)
class Output:
    """A batch's tokens; `logprobs` where a row asked for them.

    `logits` only when wanted, before any edits, valid until the next step.
    """

    token_ids: NDArray[np.int32]  # (num_rows,) the likeliest is the lowest id on a tie
    logprobs: Logprobs | None = None
    logits: NDArray[np.float32] | None = None  # (num_rows, vocab_size)

    def of(self, rows: slice) -> "Output":
        """The same of some rows."""
        found, logits = self.logprobs, self.logits
        return Output(
            self.token_ids[rows],
            found and Logprobs(found.chosen[rows], found.top_ids[rows], found.top[rows]),
            None if logits is None else logits[rows],
        )


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
        """Run one step.

        ValueError when the batch names a token or block that does not exist, and when the logits of
        a row are not finite or leave no token to choose.
        """
        ...

    def close(self) -> None: ...
