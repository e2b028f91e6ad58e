"""The OpenVINO executor on a tiny model: what it takes, gives, and refuses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
import structlog

from executors.openvino.tiny import CONFIG, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import machine
from headrace.executors.executor import Batch, Output
from headrace.executors.openvino.executor import OpenVinoExecutor
from headrace.executors.select import create_executor

PROMPT = list(range(1, 41))


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def create(**settings: Any) -> OpenVinoExecutor:
    config = ExecutorConfig(num_threads=1, **{"precision": "fp32", **settings})
    return OpenVinoExecutor(tiny_model(), config, lambda _phase, _share: None)


def run(executor: OpenVinoExecutor, ids: Sequence[int], past: int, table: Sequence[int]) -> Output:
    """One sequence's new tokens, the last one's prediction wanted with logits."""
    last = ints([len(ids) - 1])
    return executor.execute(
        Batch(ints(ids), ints([len(ids)]), ints([past]), [table], last, want_logits=True)
    )


@pytest.fixture(scope="module")
def executor() -> Iterator[OpenVinoExecutor]:
    executor = create()
    yield executor
    executor.close()


def test_it_says_what_it_runs(executor: OpenVinoExecutor) -> None:
    assert executor.name == "openvino"
    assert executor.precision == "fp32"
    assert executor.kv_cache_precision == "fp32"
    assert executor.block_size == 32
    assert executor.vocab_size == CONFIG.vocab_size
    assert executor.max_model_len == CONFIG.max_position_embeddings


def test_greedy_is_the_lowest_of_the_likeliest(executor: OpenVinoExecutor) -> None:
    output = run(executor, PROMPT, 0, [0, 1])
    assert output.logits is not None
    assert output.logits.shape == (1, CONFIG.vocab_size)
    assert output.greedy.dtype == np.int32
    assert output.greedy[0] == np.flatnonzero(output.logits[0] == output.logits[0].max())[0]


def test_logits_are_given_only_when_wanted(executor: OpenVinoExecutor) -> None:
    batch = Batch(ints(PROMPT), ints([40]), ints([0]), [[0, 1]], ints([39]))
    output = executor.execute(batch)
    assert output.logits is None
    assert output.greedy.shape == (1,)


def test_a_chunk_without_rows_only_fills_the_cache(executor: OpenVinoExecutor) -> None:
    whole = run(executor, PROMPT, 0, [0, 1]).greedy[0]
    first = executor.execute(Batch(ints(PROMPT[:20]), ints([20]), ints([0]), [[4, 3]], ints([])))
    assert first.greedy.shape == (0,)
    assert run(executor, PROMPT[20:], 20, [4, 3]).greedy[0] == whole


def test_a_batch_gives_each_sequence_what_it_gets_alone(executor: OpenVinoExecutor) -> None:
    prompts = [PROMPT[:33], PROMPT[5:20], PROMPT[3:4]]
    tables = [[2, 0], [5], [7]]
    alone = []
    for prompt, table in zip(prompts, tables, strict=True):
        logits = run(executor, prompt, 0, table).logits
        assert logits is not None
        alone.append(logits[0].copy())
    lengths = [len(prompt) for prompt in prompts]
    together = executor.execute(
        Batch(
            token_ids=ints([token for prompt in prompts for token in prompt]),
            num_new_tokens=ints(lengths),
            num_computed_tokens=ints([0, 0, 0]),
            block_tables=tables,
            rows=(np.cumsum(lengths) - 1).astype(np.int32),
            want_logits=True,
        )
    )
    np.testing.assert_allclose(together.logits, np.stack(alone), atol=2e-5)


def test_a_block_that_does_not_exist_is_refused(executor: OpenVinoExecutor) -> None:
    with pytest.raises(ValueError, match=f"block {executor.num_blocks} does not exist"):
        run(executor, PROMPT, 0, [0, executor.num_blocks])


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_smaller_weights_stay_close_to_fp32(executor: OpenVinoExecutor, precision: str) -> None:
    smaller = create(precision=precision)
    try:
        assert smaller.precision == precision
        exact, rough = (
            run(executor, PROMPT, 0, [0, 1]).logits,
            run(smaller, PROMPT, 0, [0, 1]).logits,
        )
        assert exact is not None
        assert rough is not None
        assert not np.array_equal(rough, exact)
        assert np.corrcoef(rough[0], exact[0])[0, 1] > 0.99
    finally:
        smaller.close()


def test_a_u8_cache_stays_close_to_fp32(executor: OpenVinoExecutor) -> None:
    smaller = create(kv_cache_precision="u8")
    try:
        assert (smaller.kv_cache_precision, smaller.block_size) == ("u8", 32)
        run(smaller, PROMPT[:39], 0, [1, 0])
        run(executor, PROMPT[:39], 0, [1, 0])
        exact, rough = (
            run(executor, PROMPT[39:], 39, [1, 0]).logits,
            run(smaller, PROMPT[39:], 39, [1, 0]).logits,
        )
        assert exact is not None
        assert rough is not None
        assert np.corrcoef(rough[0], exact[0])[0, 1] > 0.99
    finally:
        smaller.close()


def test_kv_cache_memory_gives_the_number_of_blocks() -> None:
    block = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * 32 * CONFIG.head_dim * 4
    executor = create(kv_cache_memory=5 * block + block // 2)
    try:
        assert executor.num_blocks == 5
        assert executor.max_model_len == 5 * 32
    finally:
        executor.close()


def test_memory_too_short_for_a_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(machine(), available_memory=100_000)
    monkeypatch.setattr("headrace.executors.openvino.executor.machine", lambda: here)
    with pytest.raises(ConfigurationError, match=r"holds a context of \d+ tokens"):
        create()


def test_a_context_that_memory_shortens_is_told() -> None:
    block = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * 32 * CONFIG.head_dim * 4
    with structlog.testing.capture_logs() as lines:
        create(kv_cache_memory=5 * block).close()
    (line,) = lines
    assert line["event"] == "executor.context_shortened"
    assert (line["model_len"], line["max_model_len"]) == (CONFIG.max_position_embeddings, 160)


def test_logits_that_are_no_numbers_are_refused(
    executor: OpenVinoExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def set_input_tensor(self, *_args: object) -> None: ...

        def infer(self) -> None: ...

        def get_output_tensor(self, _index: int) -> ov.Tensor:
            logits = np.zeros((1, CONFIG.vocab_size), np.float32)
            logits[0, 3] = np.nan
            return ov.Tensor(logits)

    monkeypatch.setattr(executor, "_request", Broken())
    with pytest.raises(ValueError, match="not finite"):
        run(executor, PROMPT, 0, [0, 1])


def test_too_little_kv_cache_memory_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_memory is 1000 bytes") as error:
        create(kv_cache_memory=1000)
    assert error.value.param == "kv_cache_memory"


def test_a_length_that_the_cache_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_model_len is 200, but kv_cache_memory holds"):
        create(kv_cache_memory=100_000, max_model_len=200)


def test_a_length_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_model_len is 257, but the model was made"):
        create(max_model_len=257)


def test_another_minor_version_of_openvino_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ov, "get_version", lambda: "2026.5.0-12345-abc")
    with pytest.raises(ConfigurationError, match=r"OpenVINO 2026\.4, but 2026\.5\.0 is installed"):
        create()


def test_loading_reports_its_phases_in_order() -> None:
    seen: list[tuple[str, float]] = []
    config = ExecutorConfig(num_threads=1)
    executor = create_executor(tiny_model(), config, lambda *step: seen.append(step))
    executor.close()
    assert list(dict.fromkeys(phase for phase, _ in seen)) == ["reading", "compiling", "warming"]
    for phase in ("reading", "compiling", "warming"):
        shares = [share for name, share in seen if name == phase]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
