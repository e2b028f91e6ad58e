"""Packed weights against numpy, and files that were not made by us or not whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace_native import Weights, levels
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from numpy.typing import NDArray

from headrace.modelfiles.quantization import FORMATS, round_bf16, to_float32
from headrace.modelfiles.weights import StoredTensor

Floats = NDArray[np.float32]
Entry = tuple[str, str, str, int, int]
EXPAND_TO_BF16 = {"amx", "avx512"}  # as products see them: rounded to bf16, amx to halves before
GROUPED = {"q4": ["Q4_0", "Q4_1", "Q4_K"], "q8": ["Q8_0"]}


def packed(entry: Entry, parts: list[Any], isa: str | None = None, **options: bool) -> Weights:
    weights = Weights.create(None, "tag", [entry], num_threads=2, isa=isa)
    weights.put(entry[0], parts, **options)
    weights.finish()
    return weights


def f32(values: Floats) -> tuple[str, NDArray[np.uint8], int]:
    return ("F32", np.ascontiguousarray(values, np.float32).view(np.uint8), len(values))


def random_blocks(kind: str, rows: int, k: int, seed: int) -> NDArray[np.uint8]:
    """Blocks whose scales are small and finite: the halves' top exponent bits are cleared."""
    stored = FORMATS[kind]
    rng = np.random.default_rng(seed)
    shape = (rows, k // stored.block_length, stored.block_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    for start in {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q6_K": (208,)}.get(
        kind, (0, 2) if kind.endswith("_K") else (0,)
    ):
        blocks[..., start + 1] &= 0xBF
    return blocks.reshape(rows, -1)


@given(
    kind=st.sampled_from(list(FORMATS)),
    num_blocks=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_every_format_expands_to_the_bits_that_numpy_gives(
    kind: str, num_blocks: int, seed: int
) -> None:
    stored = FORMATS[kind]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, num_blocks * stored.block_bytes, dtype=np.uint8)
    k = num_blocks * stored.block_length
    expected = to_float32(StoredTensor(kind, (k,), data))
    entry = ("v", "vector", "", 1, k)
    if not np.isfinite(expected).all():
        with pytest.raises(ValueError, match="'v' holds a number that is not finite"):
            packed(entry, [(kind, data, 1)])
        return
    found = packed(entry, [(kind, data, 1)]).rows("v", 0, 1)[0]
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("isa", levels())
@given(
    n=st.integers(1, 70),
    k=st.integers(1, 130),
    seed=st.integers(0, 2**32 - 1),
    weight=st.sampled_from(["bf16", "i8", "i8a8"]),
)
def test_a_matrix_of_any_shape_reads_back_as_its_rounding(
    isa: str, n: int, k: int, seed: int, weight: str
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(scale=10 ** rng.uniform(-5, 5), size=(n, k)).astype(np.float32)
    values[rng.integers(n)] = 0
    weights = packed(("m", "matrix", weight, n, k), [f32(values)], isa)
    found = weights.rows("m", 0, n)
    if weight == "bf16":
        expected = (round_bf16(values).astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(found, expected)
        return
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    quants = np.rint(values / np.where(scales == 0, np.float32(1), scales))
    # A level may fold a power of two into its scales, which rounds nothing.
    assert np.array_equal(found, quants * scales)


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize(
    ("weight", "kind"), [(weight, kind) for weight, kinds in GROUPED.items() for kind in kinds]
)
@given(n=st.integers(1, 40), blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_groups_of_a_file_are_kept_as_they_are(
    *, isa: str, weight: str, kind: str, n: int, blocks: int, seed: int
) -> None:
    k = blocks * FORMATS[kind].block_length
    data = random_blocks(kind, n, k, seed)
    expected = to_float32(StoredTensor(kind, (n, k), data.reshape(-1)))
    weights = packed(("m", "matrix", weight, n, k), [(kind, data, n)], isa)
    # A level may hold a group's scale and minimum as halves, which only those of Q4_K are not, and
    # may add the minimum without rounding the product.
    tolerance = 1e-6 * np.abs(expected)
    if kind == "Q4_K":
        halves = data.reshape(n, -1, 144)[..., :4].copy().view(np.float16).astype(np.float32)
        reach = np.abs(halves) @ np.array([63 * 15, 63], np.float32)
        tolerance = np.repeat(reach * np.float32(2**-11), 256, axis=1) + 2**-20
    if isa in EXPAND_TO_BF16:
        tolerance = tolerance + np.float32(2**-8 + 2**-10) * np.abs(expected)
    found = weights.rows("m", 0, n)
    assert (np.abs(found - expected) <= tolerance + 1e-6 * np.abs(expected).max()).all()


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=4), k=st.integers(1, 80))
def test_parts_of_several_formats_follow_one_another(counts: list[int], k: int) -> None:
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    rows = []
    for index, count in enumerate(counts):
        values = rng.normal(size=(count, k)).astype(np.float32)
        if index % 2:
            bits = np.ascontiguousarray(round_bf16(values))
            parts.append(("BF16", bits.view(np.uint8), count))
        else:
            parts.append(f32(values))
        rows.append((round_bf16(values).astype(np.uint32) << 16).view(np.float32))
    n = sum(counts)
    weights = packed(("m", "matrix", "bf16", n, k), parts)
    assert np.array_equal(weights.rows("m", 0, n), np.concatenate(rows))
    table = packed(("t", "table", "", n, k), parts)
    assert np.array_equal(table.rows("t", 0, n), np.concatenate(rows))


@given(half=st.integers(1, 60))
def test_interleaved_parts_take_sixteen_columns_in_turn(half: int) -> None:
    gate = np.repeat(np.arange(1, half + 1, dtype=np.float32)[:, None], 64, axis=1)
    weights = packed(
        ("m", "matrix", "bf16", 2 * half, 64), [f32(gate), f32(-gate)], interleaved=True
    )
    panels = -(-half // 16)
    expected = np.zeros((panels, 2, 16), np.float32)
    for row in range(half):
        expected[row // 16, 0, row % 16] = row + 1
        expected[row // 16, 1, row % 16] = -row - 1
    assert np.array_equal(weights.rows("m", 0, panels * 32)[:, 0], expected.reshape(-1))


def small_file(path: Path, tag: str = "tag") -> Weights:
    rng = np.random.default_rng(0)
    entries: list[Entry] = [
        ("norm", "vector", "", 1, 48),
        ("m", "matrix", "i8", 40, 48),
        ("embedding", "table", "", 10, 48),
    ]
    weights = Weights.create(str(path), tag, entries, num_threads=2)
    for name, _, _, n, k in entries:
        weights.put(name, [f32(rng.normal(size=(n, k)).astype(np.float32))])
    weights.finish()
    return weights


def test_a_finished_file_opens_again_with_the_same_numbers(tmp_path: Path) -> None:
    made = small_file(tmp_path / "w.bin")
    opened = Weights.open(str(tmp_path / "w.bin"), "tag", num_threads=2)
    assert opened is not None
    assert opened.names == ["norm", "m", "embedding"] == made.names
    assert opened.num_bytes == made.num_bytes == (tmp_path / "w.bin").stat().st_size
    assert opened.isa == made.isa
    assert np.array_equal(opened.rows("m", 0, 40), made.rows("m", 0, 40))
    assert [path.name for path in tmp_path.iterdir()] == ["w.bin"]


def test_another_tag_and_an_absent_file_are_none(tmp_path: Path) -> None:
    small_file(tmp_path / "w.bin")
    assert Weights.open(str(tmp_path / "w.bin"), "other", num_threads=1) is None
    assert Weights.open(str(tmp_path / "absent.bin"), "tag", num_threads=1) is None
    assert Weights.open(str(tmp_path), "tag", num_threads=1) is None


@given(junk=st.binary(max_size=300))
def test_junk_is_none(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.bin"
    path.write_bytes(junk)
    assert Weights.open(str(path), "tag", num_threads=1) is None


@given(data=st.data())
def test_a_damaged_file_is_none(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "whole.bin"
    if not path.exists():
        small_file(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = path.with_name("damaged.bin")
    damaged.write_bytes(content)
    assert Weights.open(str(damaged), "tag", num_threads=2) is None


def test_weights_that_are_dropped_unfinished_leave_no_file(tmp_path: Path) -> None:
    weights = Weights.create(
        str(tmp_path / "w.bin"), "tag", [("m", "matrix", "bf16", 4, 4)], num_threads=1
    )
    with pytest.raises(ValueError, match="'m' was not put"):
        weights.finish()
    del weights
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "w.bin"
    with pytest.raises(FileNotFoundError, match=str(path)):
        small_file(path)


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    entries = [(str(i), "matrix", "bf16", 1 << 24, 1 << 14) for i in range(64)]
    with pytest.raises(OSError, match="cannot make room"):
        Weights.create(str(tmp_path / "w.bin"), "tag", entries, num_threads=1)
    assert not list(tmp_path.iterdir())


@given(
    values=st_numpy.arrays(np.float32, (3, 32), elements=st.floats(-1, 1, width=32)),
    bad=st.sampled_from([np.nan, np.inf, -np.inf]),
    at=st.integers(0, 95),
    weight=st.sampled_from(["bf16", "i8", "i8a8"]),
)
def test_a_number_that_is_not_finite_is_refused_by_the_entrys_name(
    values: Floats, bad: float, at: int, weight: str
) -> None:
    values.reshape(-1)[at] = bad
    with pytest.raises(ValueError, match="'m' holds a number that is not finite"):
        packed(("m", "matrix", weight, 3, 32), [f32(values)])


WRONG_PARTS: list[tuple[Any, str]] = [
    ([], "has 4 rows, not 0"),
    ([f32(np.zeros((3, 32), np.float32))], "has 4 rows, not 3"),
    ([("F32", np.zeros(511, np.uint8), 4)], "511 bytes"),
    ([("Q9_9", np.zeros(512, np.uint8), 4)], "'Q9_9', which is not one of F32"),
    ([("Q4_K", np.zeros(144, np.uint8), 4)], "blocks of 256"),
    ([("F32", np.zeros((4, 32), np.float32), 4)], "bytes: needs dtype uint8"),
    ([("F32", np.zeros((512, 2), np.uint8)[:, 0], 4)], "bytes: needs a C-contiguous array"),
    ([("F32", [0] * 512, 4)], "bytes: needs an array of uint8"),
    ([("F32", np.zeros(512, np.uint8), 1 << 40)], "rows: does not fit"),
]


@pytest.mark.parametrize(("parts", "message"), WRONG_PARTS)
def test_parts_that_do_not_fit_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed(("m", "matrix", "bf16", 4, 32), parts)


@pytest.mark.parametrize(("weight", "kind"), [("q4", "Q8_0"), ("q8", "Q4_0"), ("q4", "F32")])
def test_groups_come_from_a_format_that_has_them(weight: str, kind: str) -> None:
    data = np.zeros(FORMATS[kind].block_bytes * (32 // FORMATS[kind].block_length), np.uint8)
    with pytest.raises(ValueError, match=f"'m' is {weight}, which takes"):
        packed(("m", "matrix", weight, 1, 32), [(kind, data, 1)])


WRONG_ENTRIES: list[tuple[Any, str]] = [
    ([], "entries: needs 1 to"),
    ([("m", "matrix", "bf16", 1, 1)] * 2, "'m' is there twice"),
    ([("m", "tensor", "bf16", 1, 1)], "kind: 'tensor' is not one of"),
    ([("m", "matrix", "", 1, 1)], "weight: '' is not one of"),
    ([("t", "table", "i8", 1, 1)], "'t' is no matrix"),
    ([("v", "vector", "", 2, 1)], "a vector's n is 1"),
    ([("m", "matrix", "bf16", 0, 1)], "n is not in"),
    ([("m", "matrix", "bf16", 1, -1)], "k is not in"),
    ([("m", "matrix", "bf16", 1 << 40, 1)], "n: does not fit"),
    ([("", "matrix", "bf16", 1, 1)], "needs a name"),
]


@pytest.mark.parametrize(("entries", "message"), WRONG_ENTRIES)
def test_entries_that_cannot_be_are_refused(entries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weights.create(None, "tag", entries, num_threads=1)


def test_a_level_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("m", "matrix", "bf16", 1, 1)]
    with pytest.raises(ValueError, match="isa"):
        Weights.create(None, "tag", entries, num_threads=1, isa="altivec")
    monkeypatch.setenv("HEADRACE_ISA", "altivec")
    with pytest.raises(ValueError, match="HEADRACE_ISA"):
        Weights.create(None, "tag", entries, num_threads=1)


def test_what_is_finished_takes_no_more() -> None:
    weights = packed(("v", "vector", "", 1, 4), [f32(np.zeros((1, 4), np.float32))])
    with pytest.raises(ValueError, match="finished"):
        weights.put("v", [f32(np.zeros((1, 4), np.float32))])
    with pytest.raises(ValueError, match="finished already"):
        weights.finish()


@pytest.mark.parametrize(("first", "count", "name"), [(-1, 1, "first"), (0, 65, "count")])
def test_rows_beyond_a_matrix_are_refused(first: int, count: int, name: str) -> None:
    weights = packed(("m", "matrix", "i8", 40, 32), [f32(np.zeros((40, 32), np.float32))])
    with pytest.raises(ValueError, match=f"{name}: needs 0 to"):
        weights.rows("m", first, count)
    with pytest.raises(ValueError, match="there is no 'absent'"):
        weights.rows("absent", 0, 1)
