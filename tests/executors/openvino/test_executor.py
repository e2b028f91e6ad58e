"""The OpenVINO executor's own choices on a tiny model; the rest is in ../test_executors.py."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
import pytest

from executors.batches import run
from executors.tiny import CONFIG, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.openvino.executor import OpenVinoExecutor

PROMPT = list(range(1, 41))


def create(**settings: Any) -> OpenVinoExecutor:
    config = ExecutorConfig(num_threads=1, **{"precision": "fp32", **settings})
    return OpenVinoExecutor(tiny_model(), config, lambda _phase, _share: None)


@pytest.fixture(scope="module")
def executor() -> Iterator[OpenVinoExecutor]:
    executor = create()
    yield executor
    executor.close()


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


def test_another_minor_version_of_openvino_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ov, "get_version", lambda: "2026.5.0-12345-abc")
    with pytest.raises(ConfigurationError, match=r"OpenVINO 2026\.4, but 2026\.5\.0 is installed"):
        create()
