"""Which arithmetic of the native kernels an option means, and what they do not have."""

from dataclasses import replace
from typing import Any

import pytest

from executors.tiny import CONFIG
from headrace.executors.config import ExecutorConfig
from headrace.executors.native.precision import NativePrecision, choose_precision, misfit


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, NativePrecision("w8a16", "bf16")),
        ({"precision": "int8"}, NativePrecision("w8a16", "bf16")),
        ({"precision": "w8a16"}, NativePrecision("w8a16", "bf16")),
        ({"precision": "bf16"}, NativePrecision("bf16", "bf16")),
        ({"precision": "w8a8"}, NativePrecision("w8a8", "bf16")),
        ({"precision": "w4a16"}, NativePrecision("w4a16", "bf16")),
        ({"kv_cache_precision": "u8"}, NativePrecision("w8a16", "i8")),
        ({"kv_cache_precision": "int8"}, NativePrecision("w8a16", "i8")),
        ({"kv_cache_precision": "bf16"}, NativePrecision("w8a16", "bf16")),
    ],
)
def test_every_name_has_its_arithmetic(asked: dict[str, Any], chosen: NativePrecision) -> None:
    config = ExecutorConfig(**asked)
    assert misfit(config) is None
    assert choose_precision(config) == chosen


def test_fp32_is_not_offered_and_the_others_are_named() -> None:
    reason = misfit(ExecutorConfig(precision="fp32"))
    assert reason is not None
    assert "no precision 'fp32'" in reason
    assert "'w8a16'" in reason


@pytest.mark.parametrize("cache", ["fp32", "fp16"])
def test_a_wider_cache_is_not_offered(cache: Any) -> None:
    reason = misfit(ExecutorConfig(kv_cache_precision=cache))
    assert reason is not None
    assert f"no kv_cache_precision '{cache}'" in reason


def test_heads_beyond_the_kernels_do_not_fit() -> None:
    assert misfit(ExecutorConfig(), replace(CONFIG, head_dim=1024)) is None
    reason = misfit(ExecutorConfig(), replace(CONFIG, head_dim=1026))
    assert reason is not None
    assert "1026" in reason
