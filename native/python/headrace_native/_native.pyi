from collections.abc import Sequence
from typing import Literal, Protocol, TypedDict, Unpack, final

import numpy as np
from numpy.typing import NDArray

def levels() -> list[str]:
    """The kernels that this machine can run, best first."""

def level() -> str:
    """The kernels that are used: those HEADRACE_ISA names, or the best.

    ValueError names the variable when this machine cannot run them.
    """

@final
class Weights:
    """Packed weights, in a mapped file or in memory."""

    @staticmethod
    def create(
        path: str | None,
        tag: str,
        entries: Sequence[tuple[str, str, str, int, int]],
        *,
        num_threads: int,
        isa: str | None = None,
    ) -> Weights:
        """New weights, all to be put before they are finished; `path` None keeps them in memory.

        An entry is (name, "matrix" | "vector" | "table", "bf16" | "i8" | "i8a8" | "q8" | "q4" or ""
        for vectors and tables, n, k), in the order a step reads them. `tag` names the content.
        OSError when the file cannot be made or has no room.
        """

    @staticmethod
    def open(path: str, tag: str, *, num_threads: int, isa: str | None = None) -> Weights | None:
        """Finished weights; None when there is no such file, or it is not whole and of this tag."""

    def put(
        self,
        name: str,
        parts: Sequence[tuple[str, NDArray[np.uint8], int]],
        *,
        interleaved: bool = False,
    ) -> None:
        """Pack an entry from parts whose rows follow one another: (format, bytes, rows).

        Formats are F32, F16, BF16 and GGUF's names. Interleaved, two parts give 16 rows in turn.
        ValueError names the entry that its parts do not fit, or that holds a number that is not
        finite.
        """

    def finish(self) -> None:
        """Check that nothing is missing; a file gets its name now. OSError when it cannot."""

    @property
    def names(self) -> list[str]: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def rows(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Columns of a matrix (padding included) or rows of a table, (count, k), as used."""

class _Shape(TypedDict):
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    norm_eps: float
    attention_scale: float
    embedding_scale: float
    activation: Literal["silu", "gelu_tanh"]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    post_norms: bool
    windows: list[int]
    ropes: list[int]
    cache: Literal["bf16", "i8"]

class _Options(_Shape):
    num_blocks: int
    max_tokens: int
    max_seqs: int
    max_rows: int
    num_threads: int

class _Edits(Protocol):
    """Row i's are those from begins[i] to begins[i + 1], applied in order to one logit each.

    x becomes (x / repetition if x > 0 else x * repetition) + term.
    """

    @property
    def begins(self) -> NDArray[np.int32]:
        """(rows + 1,) of them."""

    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def repetitions(self) -> NDArray[np.float32]: ...
    @property
    def terms(self) -> NDArray[np.float32]: ...

class _Sampling(Protocol):
    """How each row's token is drawn, (rows,) each: edits, temperature, min_p, top_k, top_p."""

    @property
    def temperatures(self) -> NDArray[np.float64]:
        """0: the likeliest token."""

    @property
    def top_p(self) -> NDArray[np.float64]: ...
    @property
    def min_p(self) -> NDArray[np.float64]: ...
    @property
    def uniforms(self) -> NDArray[np.float64]:
        """The random numbers, in [0, 1)."""

    @property
    def top_k(self) -> NDArray[np.int32]:
        """0: off."""

    @property
    def num_top(self) -> NDArray[np.int32]:
        """How many of the likeliest to name; -1: no log-probabilities at all."""

    @property
    def targets(self) -> NDArray[np.int32]:
        """Take this token; -1: draw one."""

    @property
    def edits(self) -> _Edits | None: ...

@final
class StepResult:
    """What a step computed for each row; None for what was not asked for."""

    @property
    def greedy(self) -> NDArray[np.int32]:
        """The token with the largest logit, the lowest on a tie."""

    @property
    def max(self) -> NDArray[np.float32]: ...
    @property
    def log_sum_exp(self) -> NDArray[np.float32] | None:
        """With logits and log-probabilities."""

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """(rows, vocab_size), before edits; with sampling, minus infinity where masked."""

    @property
    def token_ids(self) -> NDArray[np.int32] | None:
        """With sampling; -1 where no token is possible or a logit is not finite."""

    @property
    def logprobs(self) -> NDArray[np.float32] | None:
        """Of the sampled tokens, before edits and temperature; 0 where none was asked for."""

    @property
    def top_ids(self) -> NDArray[np.int32] | None:
        """(rows, largest num_top), likeliest first, the lowest id first on a tie, then -1."""

    @property
    def top_logprobs(self) -> NDArray[np.float32] | None: ...

@final
class Model:
    """A decoder over packed weights and a paged KV cache of blocks of 32 tokens.

    One thread at a time: RuntimeError tells a second one. A process forked during a step has half
    of it: there the model stays in use, and RuntimeError is all that it gives.
    """

    def __init__(self, weights: Weights, **kwargs: Unpack[_Options]) -> None: ...
    def set_rope(self, table: int, cos: NDArray[np.float32], sin: NDArray[np.float32]) -> None:
        """Both (max_position, head_dim / 2); every table that a layer names must be set."""

    def step(
        self,
        token_ids: NDArray[np.int32],
        num_new: NDArray[np.int32],
        num_computed: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        rows: NDArray[np.int32],
        *,
        want: Literal["greedy", "logits"],
        masks: NDArray[np.uint32] | None = None,
        sampling: _Sampling | None = None,
    ) -> StepResult:
        """Compute new tokens of several sequences, whose counts are `num_new`, and some logits.

        block_tables: (sequences, blocks). rows: rising indices of tokens. masks: (rows,
        ceil(vocab_size / 32)), bit i % 32 of word i // 32 allows token i. With sampling a token is
        drawn for each row. ValueError names what is out of range, and then nothing was computed.
        """

    def profile(self) -> dict[str, float]:
        """Steps since the last call, and milliseconds of the first thread: in all and by part."""

    @staticmethod
    def block_bytes(*, isa: str | None = None, **kwargs: Unpack[_Shape]) -> int:
        """What one block of the KV cache takes, over all layers."""
