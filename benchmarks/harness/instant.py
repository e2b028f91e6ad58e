"""An executor whose model costs nothing, so that everything else can be measured."""

import time

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Batch, Output

TEXT = "The mill stands where the river bends, and its wheel turns day and night. " * 12


class InstantExecutor:
    """Predicts the tokens of a fixed text, whatever it is given, `step` seconds later.

    `seconds` is the processor time it took itself, reading `weights` included.
    """

    name = precision = kv_cache_precision = "instant"
    block_size = 32
    num_blocks = 4096
    max_model_len = 8192

    def __init__(self, token_ids: list[int], vocab_size: int, *, step: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.seconds = 0.0
        self.weights: NDArray[np.int8] = np.empty(0, dtype=np.int8)
        self._token_ids = np.array(token_ids, dtype=np.int32)
        self._step = step

    def execute(self, batch: Batch) -> Output:
        started = time.thread_time()
        ends = batch.num_computed_tokens[-len(batch.rows) :] % len(self._token_ids)
        output = Output(self._token_ids[ends])
        self.weights.sum()
        if self._step:
            time.sleep(self._step)
        self.seconds += time.thread_time() - started
        return output

    def close(self) -> None:
        """Nothing to give back."""
