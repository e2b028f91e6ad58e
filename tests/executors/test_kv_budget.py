"""How large the cache may be."""

import pytest

from headrace.errors import ConfigurationError
from headrace.executors.kv_budget import num_blocks_for

MIB = 1 << 20


def blocks(memory: int | None = None, **changes: int) -> int:
    numbers = {"bytes_per_block": MIB, "available": 8 << 30, "weight_bytes": 0, "most": 10_000}
    return num_blocks_for(memory, **{**numbers, **changes})


def test_a_small_model_gets_320_mib() -> None:
    assert blocks(weight_bytes=100 * MIB) == 320


def test_a_large_model_gets_as_much_as_its_weights() -> None:
    assert blocks(weight_bytes=900 * MIB) == 900


def test_a_small_machine_keeps_three_quarters_of_its_memory() -> None:
    assert blocks(available=400 * MIB, weight_bytes=900 * MIB) == 100


def test_a_machine_without_memory_still_gets_a_block() -> None:
    assert blocks(available=0) == 1


def test_no_more_blocks_than_can_be_in_use() -> None:
    assert blocks(most=7) == 7
    assert blocks(100 * MIB, most=7) == 7


def test_asked_memory_is_respected_to_the_block() -> None:
    assert blocks(5 * MIB + MIB // 2) == 5


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_memory is 7 bytes"):
        blocks(7)
