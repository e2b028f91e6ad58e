"""Memory whose pages come back with what was written."""

import numpy as np
import pytest

from headrace.executors.openvino import arena as arena_file
from headrace.executors.openvino.arena import Arena


def test_arrays_lie_aligned_and_apart() -> None:
    arena = Arena(3 * 5 + 100 * 4, 2)
    small, large = arena.take((3, 5), np.int8), arena.take((100,), np.float32)
    small[...] = 7
    large[...] = 2.5
    assert (small == 7).all()
    assert (large == 2.5).all()
    assert large.ctypes.data % 64 == small.ctypes.data % 64 == 0


def test_paged_out_arrays_keep_their_values() -> None:
    arena = Arena(1 << 20, 1)
    values = arena.take((1 << 18,), np.float32)
    values[...] = np.arange(1 << 18)
    with arena.paging_out():
        assert values[777] == 777
    np.testing.assert_array_equal(values, np.arange(1 << 18))


def test_without_a_writable_place_memory_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_file, "_PLACES", ())
    arena = Arena(64, 1)
    values = arena.take((16,), np.float32)
    values[...] = 3
    arena.page_out()
    assert (values == 3).all()
