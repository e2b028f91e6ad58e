"""Runs a decoder with our own kernels on the CPU: owns the packed weights and the KV cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.executors.config import MAX_THREADS, ExecutorConfig
from headrace.executors.cpu import machine
from headrace.executors.executor import Batch, Logprobs, Output, Progress
from headrace.executors.kv_budget import kv_budget
from headrace.executors.native.kernels import BLOCK_SIZE, Model, StepResult, instruction_set
from headrace.executors.native.loading import Packing, load_weights
from headrace.executors.native.precision import choose_precision
from headrace.executors.native.shape import model_shape, rope_tables
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.model import ModelFiles


class NativeExecutor:
    """An `Executor` over one set of packed weights and one cache. The same bits in any batch."""

    def __init__(self, files: ModelFiles, config: ExecutorConfig, progress: Progress) -> None:
        here = machine()
        self._precision = choose_precision(config)
        self._instruction_set = instruction_set()
        num_threads = config.num_threads or min(here.num_cores, MAX_THREADS)
        packing = Packing(self._precision.mode, self._instruction_set, num_threads)
        self._weights = load_weights(files, packing, config.cache_dir, progress)
        kernels: dict[str, Any] = {"cache": self._precision.cache, "isa": self._instruction_set}
        self._budget = kv_budget(
            files.config,
            config,
            block_size=BLOCK_SIZE,
            bytes_per_block=Model.block_bytes(**model_shape(files.config, 1), **kernels),
            available=(machine() if self._weights.is_private else here).available_memory,
            weight_bytes=self._weights.content.num_bytes,
        )
        self._vocab_size = files.config.vocab_size
        progress("warming", 0.0)
        self._model = self._make_model(files.config, config, num_threads)
        self._warm_up(min(BLOCK_SIZE, self.max_model_len, config.max_num_batched_tokens))
        progress("warming", 1.0)

    @property
    def name(self) -> str:
        """With the instruction set, of which the last digits of a result depend."""
        return f"native-{self._instruction_set}"

    @property
    def precision(self) -> str:
        return self._precision.mode

    @property
    def kv_cache_precision(self) -> str:
        return "int8" if self._precision.cache == "i8" else self._precision.cache

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE

    @property
    def num_blocks(self) -> int:
        return self._budget.num_blocks

    @property
    def max_model_len(self) -> int:
        return self._budget.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def execute(self, batch: Batch) -> Output:
        result = self._model.step(
            _ints(batch.token_ids),
            _ints(batch.num_new_tokens),
            _ints(batch.num_computed_tokens),
            _block_tables(batch),
            _ints(batch.rows),
            want="logits" if batch.want_logits else "greedy",
            sampling=batch.sampling,
        )
        if not np.isfinite(result.max).all():
            raise ValueError("the model's logits are not finite")
        return Output(_token_ids(result), _logprobs(result), result.logits)

    def close(self) -> None:
        del self._model
        self._weights.close()
        del self._weights

    def _make_model(self, model: ModelConfig, config: ExecutorConfig, num_threads: int) -> Model:
        made = Model(
            self._weights.content,
            **model_shape(model, self.max_model_len),
            cache=self._precision.cache,
            num_blocks=self.num_blocks,
            max_tokens=config.max_num_batched_tokens,
            max_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
            max_rows=config.max_num_batched_tokens,
            num_threads=num_threads,
        )
        for number, (cos, sin) in enumerate(rope_tables(model, self.max_model_len)):
            made.set_rope(number, cos, sin)
        return made

    def _warm_up(self, longest: int) -> None:
        """Touch every weight and start the threads, so that no request pays for it."""
        one = np.zeros(1, np.int32)
        for count in (longest, 1):
            self.execute(
                Batch(
                    token_ids=np.zeros(count, np.int32),
                    num_new_tokens=np.array([count], np.int32),
                    num_computed_tokens=one,
                    block_tables=[[0]],
                    rows=one,
                )
            )


def _token_ids(result: StepResult) -> NDArray[np.int32]:
    # Named by their type, which is unknown where the kernels are not installed.
    greedy: NDArray[np.int32] = result.greedy
    sampled: NDArray[np.int32] | None = result.token_ids
    if sampled is None:
        return greedy
    if (sampled < 0).any():
        raise ValueError("an edit leaves a logit not finite, or no token to choose")
    return sampled


def _logprobs(result: StepResult) -> Logprobs | None:
    if result.logprobs is None or result.top_ids is None or result.top_logprobs is None:
        return None
    return Logprobs(result.logprobs, result.top_ids, result.top_logprobs)


def _ints(values: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)


def _block_tables(batch: Batch) -> NDArray[np.int32]:
    """The ragged tables as one array, padded; ValueError for one that is too short.

    The kernels check all the rest, but cannot tell padding from a block.
    """
    tables = batch.block_tables
    sizes = np.fromiter(map(len, tables), np.int32, len(tables))
    lengths = batch.num_computed_tokens + batch.num_new_tokens
    if len(tables) != len(lengths):
        raise ValueError(f"a batch of {len(lengths)} sequences has {len(tables)} block tables")
    if (lengths > sizes * BLOCK_SIZE).any():
        at = int((lengths > sizes * BLOCK_SIZE).argmax())
        raise ValueError(
            f"sequence {at} has {lengths[at]} tokens, but its block table holds"
            f" {sizes[at] * BLOCK_SIZE}"
        )
    padded = np.zeros((len(tables), max(map(len, tables), default=1)), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
