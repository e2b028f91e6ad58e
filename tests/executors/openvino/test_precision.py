"""Which arithmetic is chosen for which CPU."""

from typing import Any

import pytest

from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import Machine
from headrace.executors.openvino.precision import Precision, choose_precision

AVX2 = Machine("Old CPU", frozenset({"avx2"}), 2, 1 << 30)
AMX = Machine("New CPU", frozenset({"avx2", "amx_bf16"}), 2, 1 << 30)


@pytest.mark.parametrize(
    ("asked", "here", "chosen"),
    [
        ({}, AVX2, Precision("int8", "f32", "fp16")),
        ({}, AMX, Precision("bf16", "bf16", "bf16")),
        ({"precision": "bf16"}, AVX2, Precision("bf16", "f32", "fp16")),
        ({"precision": "int8"}, AMX, Precision("int8", "bf16", "bf16")),
        ({"precision": "w8a16"}, AVX2, Precision("int8", "f32", "fp16")),
        ({"precision": "fp32"}, AVX2, Precision("fp32", "f32", "fp32")),
        ({"precision": "fp32"}, AMX, Precision("fp32", "f32", "fp32")),
        ({"kv_cache_precision": "fp16"}, AVX2, Precision("int8", "f32", "fp16")),
        ({"kv_cache_precision": "u8"}, AVX2, Precision("int8", "f32", "u8")),
        ({"kv_cache_precision": "int8"}, AVX2, Precision("int8", "f32", "u8")),
    ],
)
def test_precision_follows_the_cpu(asked: dict[str, Any], here: Machine, chosen: Precision) -> None:
    assert choose_precision(ExecutorConfig(**asked), here) == chosen


def test_an_fp16_cache_beside_bf16_products_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_precision 'fp16'"):
        choose_precision(ExecutorConfig(kv_cache_precision="fp16"), AMX)


def test_a_bf16_cache_without_bf16_instructions_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"kv_cache_precision 'bf16'.*Old CPU") as error:
        choose_precision(ExecutorConfig(kv_cache_precision="bf16"), AVX2)
    assert error.value.param == "kv_cache_precision"


@pytest.mark.parametrize("precision", ["w8a8", "w4a16"])
def test_what_only_our_kernels_do_is_refused_by_name(precision: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'{precision}' needs the native") as error:
        choose_precision(ExecutorConfig(precision=precision), AMX)
    assert error.value.param == "precision"
