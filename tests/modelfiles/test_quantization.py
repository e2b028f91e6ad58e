import gguf
import numpy as np
import pytest

from headrace.modelfiles.quantization import (
    FORMATS,
    round_bf16,
    row_blocks,
    to_bfloat16,
    to_float32,
)
from headrace.modelfiles.weights import StoredTensor

KINDS = list(FORMATS)


def random_blocks(kind: str, num_blocks: int) -> np.ndarray:
    rng = np.random.default_rng(KINDS.index(kind))
    return rng.integers(0, 256, (num_blocks, FORMATS[kind].block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # random halves hold infinities
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_every_format_expands_as_the_reference_does(kind: str) -> None:
    blocks = random_blocks(kind, 700)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    found = FORMATS[kind].expand(blocks)
    assert np.array_equal(found.reshape(-1), expected.reshape(-1), equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_block_sizes_are_those_of_ggml(kind: str) -> None:
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert (FORMATS[kind].block_length, FORMATS[kind].block_bytes) == (length, size)


def test_a_tensor_of_many_chunks_expands_like_its_rows_one_by_one() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1300, 256)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    tensor = StoredTensor("Q8_0", values.shape, packed.reshape(-1).view(np.uint8))
    rows = [
        to_float32(StoredTensor("Q8_0", (1, 256), row.view(np.uint8).reshape(-1))) for row in packed
    ]
    assert np.array_equal(to_float32(tensor), np.concatenate(rows))
    assert np.array_equal(to_bfloat16(tensor), round_bf16(np.concatenate(rows)))


@pytest.mark.parametrize(("num_rows", "width"), [(1300, 256), (1, 256), (3, 1 << 17)])
def test_the_row_blocks_of_a_matrix_are_the_matrix(num_rows: int, width: int) -> None:
    values = np.random.default_rng(0).normal(size=(num_rows, width)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    tensor = StoredTensor("Q8_0", values.shape, packed.reshape(-1).view(np.uint8))
    found = np.full(values.shape, np.nan, np.float32)
    for rows, block in row_blocks(tensor):
        assert np.isnan(found[rows]).all()
        found[rows] = to_float32(block)
    assert np.array_equal(found, to_float32(tensor))


def test_bf16_rounds_to_nearest_and_ties_to_even() -> None:
    bits = np.array(
        [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, 0x7F800001],
        np.uint32,
    )
    rounded = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x7FC0]
    assert round_bf16(bits.view(np.float32)).tolist() == rounded


def test_bf16_comes_back_untouched() -> None:
    data = np.arange(64, dtype=np.uint16).view(np.uint8)
    tensor = StoredTensor("BF16", (8, 8), data)
    assert np.shares_memory(to_bfloat16(tensor), data)
    assert np.array_equal(round_bf16(to_float32(tensor)), to_bfloat16(tensor))
