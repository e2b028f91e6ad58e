"""The native executor's own choices: precisions, caches and what is packed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.batches import chunked_logits, logits
from executors.conftest import NATIVE, OPENVINO
from executors.quantised import Quantised
from executors.tiny import CONFIG, RandomWeights, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.cpu import machine
from headrace.executors.executor import Executor
from headrace.executors.select import create_executor

pytestmark = pytest.mark.usefixtures("native_kernels")

PROMPTS = [list(range(1, 41)), list(range(70, 3, -1)), [5]]
POST_NORMS = replace(
    CONFIG, architecture="gemma3", post_norms=True, qk_norm=True, activation="gelu_tanh"
)


def answers(executor: Executor) -> np.ndarray:
    """Logits of all tokens of the prompts."""
    try:
        return np.concatenate(chunked_logits(executor, PROMPTS, np.random.default_rng(3)))
    finally:
        executor.close()


def error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - exact).mean() / np.square(exact).mean()))


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    return answers(OPENVINO.create())


@pytest.mark.parametrize(
    ("precision", "kv_cache", "low", "high"),
    [
        ("bf16", "bf16", 0, 0.02),
        ("bf16", "int8", 1e-3, 0.03),
        ("int8", "bf16", 2e-3, 0.04),
        ("w8a16", "u8", 2e-3, 0.05),
        ("w8a8", "bf16", 2e-3, 0.08),
    ],
)
def test_a_precision_is_as_close_as_its_bits(
    exact: np.ndarray, precision: Any, kv_cache: Any, low: float, high: float
) -> None:
    executor = NATIVE.create(precision=precision, kv_cache_precision=kv_cache)
    assert executor.precision == {"int8": "w8a16"}.get(precision, precision)
    assert executor.kv_cache_precision == {"u8": "int8"}.get(kv_cache, kv_cache)
    assert low <= error(answers(executor), exact) < high


def test_auto_is_8_bit_weights_with_wide_operands_and_a_bf16_cache() -> None:
    executor = NATIVE.create(precision="auto", kv_cache_precision="auto")
    assert (executor.precision, executor.kv_cache_precision) == ("w8a16", "bf16")
    executor.close()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_that_stay_as_they_are_cost_nothing_more(kind: str) -> None:
    kinds = {"o_proj": "Q4_0", "proj": kind, "embed_tokens": "Q8_0"}
    files = tiny_model(CONFIG, Quantised(CONFIG, kinds))
    exact = answers(OPENVINO.create(files))
    kept, requantised = (
        error(answers(NATIVE.create(files, precision=precision)), exact)
        for precision in ("w4a16", "w8a16")
    )
    assert kept < 0.02
    assert kept < requantised


def test_w4a16_without_4_bit_blocks_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"matrices are F32: use 'w8a16'"):
        NATIVE.create(precision="w4a16")


def test_w8a8_of_an_architecture_that_cannot_be_rotated_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"gemma3.*use 'w8a16'"):
        NATIVE.create(tiny_model(POST_NORMS), precision="w8a8")


def test_outliers_in_the_residual_do_not_hurt_w8a8() -> None:
    weights = RandomWeights(CONFIG)
    weights.float32("model.embed_tokens.weight")[:, 7] *= 60
    weights.float32("model.layers.0.mlp.down_proj.weight")[7] *= 60
    files = tiny_model(CONFIG, weights)
    exact = answers(OPENVINO.create(files))
    assert error(answers(NATIVE.create(files, precision="w8a8")), exact) < 0.1


@pytest.mark.parametrize("kv_cache", ["bf16", "int8"])
@pytest.mark.parametrize("precision", ["bf16", "w8a16", "w8a8", "w4a16"])
def test_logits_that_are_no_numbers_are_refused(precision: Any, kv_cache: Any) -> None:
    weights = Quantised(CONFIG, {"o_proj": "Q4_0"} if precision == "w4a16" else {})
    for layer in range(CONFIG.num_layers):
        for name in ("gate_proj", "up_proj"):  # finite, but their product is not
            weights.float32(f"model.layers.{layer}.mlp.{name}.weight")[...] *= 1e22
    files = tiny_model(CONFIG, weights)
    with pytest.raises(ValueError, match="the model's logits are not finite"):
        NATIVE.create(files, precision=precision, kv_cache_precision=kv_cache)


def test_memory_is_measured_after_weights_that_are_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bool] = []
    before, after = (replace(machine(), available_memory=1 << bits) for bits in (30, 18))
    monkeypatch.setattr(
        "headrace.executors.native.executor.machine", lambda: after if loaded else before
    )

    def create(cache_dir: Path | None) -> int:
        loaded.clear()
        config = NATIVE.config(cache_dir=cache_dir)
        executor = create_executor(tiny_model(), config, lambda *_: loaded.append(True))
        executor.close()
        return executor.num_blocks

    mapped = create(tmp_path)
    with pytest.raises(ConfigurationError, match="memory available holds"):
        create(None)
    assert mapped * 32 >= CONFIG.max_position_embeddings


def test_a_level_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "scalar")
    executor = NATIVE.create()
    assert executor.name == "native-scalar"
    executor.close()


def test_a_step_of_fewer_tokens_than_there_may_be_sequences_is_none_the_less_one() -> None:
    executor = NATIVE.create(max_num_batched_tokens=3, max_num_seqs=64)
    logits(executor, [1, 2, 3], 0, [0])
    executor.close()


def test_a_step_beyond_its_limits_is_refused() -> None:
    executor = NATIVE.create(max_num_batched_tokens=8, max_num_seqs=2)
    logits(executor, [1] * 8, 0, [0])
    with pytest.raises(ValueError, match="tokens"):
        logits(executor, [1] * 9, 0, [0])
    executor.close()
