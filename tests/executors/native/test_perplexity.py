"""What each of the native executor's precisions costs in perplexity on a real text."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from executors.perplexity import difference, log_likelihoods, windows
from headrace.executors.config import ExecutorConfig
from headrace.executors.select import create_executor
from real_models import GEMMA3, SMOLLM2, real_model

NUM_WINDOWS = {SMOLLM2: 8, GEMMA3: 2}  # more narrows the error, and takes minutes


@cache
def likelihoods(source: str, executor: str, precision: str, kv_cache: str) -> NDArray[np.float64]:
    files = real_model(source)
    config = ExecutorConfig(
        executor=executor,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
        kv_cache_precision=kv_cache,  # type: ignore[arg-type]
        kv_cache_memory=1 << 28,
        max_model_len=1024,
    )
    it = create_executor(files, config, lambda _phase, _share: None)
    try:
        parts = windows(files, NUM_WINDOWS[source])
        return np.concatenate([log_likelihoods(it, ids) for ids in parts])
    finally:
        it.close()


BOUNDS = [
    (SMOLLM2, "bf16", "bf16", 0.001),
    (SMOLLM2, "w8a16", "bf16", 0.005),
    (SMOLLM2, "w8a16", "u8", 0.008),
    (SMOLLM2, "w8a8", "bf16", 0.010),
    (SMOLLM2, "w4a16", "bf16", 0.002),  # of the same weights dequantised: the file holds them so
    (GEMMA3, "bf16", "bf16", 0.001),
    (GEMMA3, "w8a16", "bf16", 0.005),
    (GEMMA3, "w4a16", "bf16", 0.002),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("source", "precision", "kv_cache", "bound"), BOUNDS)
def test_a_precision_costs_no_more_than_its_bound(
    source: str, precision: str, kv_cache: str, bound: float
) -> None:
    reference = likelihoods(source, "openvino", "fp32", "fp32")
    found = difference(likelihoods(source, "native", precision, kv_cache), reference)
    assert found.perplexity < bound + found.standard_error, found
