"""The stored number formats and how each becomes float32. Knows nothing of files or models.

Block layouts are those of ggml (ggml-common.h); the K ones hold 256 numbers with 6-bit scales.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from headrace.modelfiles.weights import StoredTensor

Blocks = NDArray[np.uint8]  # (num_blocks, block_bytes)
Floats = NDArray[np.float32]

_CHUNK = 1 << 16  # numbers expanded at a time, so that the temporaries stay in the cache
_NUM_THREADS = min(os.cpu_count() or 1, 4)


@dataclass(frozen=True, slots=True)
class Format:
    """`block_length` numbers lie in `block_bytes` bytes."""

    block_length: int
    block_bytes: int
    expand: Callable[[Blocks], Floats]  # (num_blocks, block_bytes) -> (num_blocks, block_length)


def row_blocks(tensor: StoredTensor) -> Iterator[tuple[slice, StoredTensor]]:
    """A matrix as runs of rows, small enough that what is made of one stays in the cache."""
    num_rows, width = tensor.shape
    step = max(_CHUNK // width, 1)
    rows = tensor.data.reshape(num_rows, -1)
    for start in range(0, num_rows, step):
        some = rows[start : start + step]
        shape = len(some), width
        yield slice(start, start + len(some)), StoredTensor(tensor.kind, shape, some.reshape(-1))


def to_float32(tensor: StoredTensor) -> Floats:
    """Expand a stored tensor; a fresh array, but for F32, which stays the mapped one."""
    if tensor.kind == "F32":
        return tensor.data.view(np.float32).reshape(tensor.shape)
    out = np.empty(prod(tensor.shape), np.float32)
    _expand(tensor, lambda start, values: out[start : start + values.size].__setitem__(..., values))
    return out.reshape(tensor.shape)


def to_bfloat16(tensor: StoredTensor) -> NDArray[np.uint16]:
    """Expand and round to nearest even; bf16 bit patterns, the mapped ones for BF16."""
    if tensor.kind == "BF16":
        return tensor.data.view(np.uint16).reshape(tensor.shape)
    out = np.empty(prod(tensor.shape), np.uint16)
    _expand(
        tensor,
        lambda start, values: out[start : start + values.size].__setitem__(..., round_bf16(values)),
    )
    return out.reshape(tensor.shape)


def round_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round float32 to the nearest bf16, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    sums = bits >> 16
    sums &= 1
    sums += 0x7FFF
    sums += bits
    rounded = sums.view("<u2")[..., 1::2]  # the upper halves
    if np.isnan(values.max(initial=-np.inf)):
        rounded[np.isnan(values)] = 0x7FC0
    return rounded


def _expand(tensor: StoredTensor, store: Callable[[int, Floats], None]) -> None:
    """Expand chunk by chunk, on a few threads (numpy lets go of the interpreter lock)."""
    stored = FORMATS[tensor.kind]
    blocks = tensor.data.reshape(-1, stored.block_bytes)
    step = max(_CHUNK // stored.block_length, 1)

    def expand(first: int) -> None:
        values = stored.expand(blocks[first : first + step])
        store(first * stored.block_length, values.reshape(-1))

    starts = range(0, len(blocks), step)
    if len(starts) <= _NUM_THREADS:
        for first in starts:
            expand(first)
        return
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for _ in pool.map(expand, starts):
            pass


def _f32(blocks: Blocks) -> Floats:
    return blocks.view(np.float32)


def _f16(blocks: Blocks) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Blocks) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Blocks, start: int) -> Floats:
    """The fp16 at byte `start` of each block, as a column."""
    return blocks[:, start : start + 2].view(np.float16).astype(np.float32)


def _nibbles(quants: Blocks) -> NDArray[np.uint8]:
    """Low halves, then high halves."""
    packed = np.ascontiguousarray(quants)
    run = f"V{packed.shape[1]}"  # one item is copied faster than a short run of bytes
    out = np.empty((len(packed), 2), run)
    out[:, :1] = (packed & 15).view(run)
    out[:, 1:] = (packed >> 4).view(run)
    return out.view(np.uint8)


def _fifth_bits(words: Blocks) -> NDArray[np.uint8]:
    """32 flags a block, moved to the place of bit 4."""
    return np.unpackbits(words, axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= 8
    values *= _half(blocks, 0)
    return values


def _q4_1(blocks: Blocks) -> Floats:
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q5_0(blocks: Blocks) -> Floats:
    values = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.float32)
    values -= 16
    values *= _half(blocks, 0)
    return values


def _q5_1(blocks: Blocks) -> Floats:
    values = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: Blocks) -> Floats:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _k_scales(packed: Blocks) -> tuple[Floats, Floats]:
    """The eight 6-bit scales and minimums that Q4_K and Q5_K pack into 12 bytes."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 0x30)], axis=1)
    minimums = np.concatenate([middle & 63, (high >> 4) | ((middle >> 2) & 0x30)], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _scale_k(blocks: Blocks, quants: NDArray[np.uint8]) -> Floats:
    """Eight groups of 32, each with a scale and a minimum of its own."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    values = quants.reshape(-1, 8, 32).astype(np.float32)
    values *= (_half(blocks, 0) * scales)[..., None]
    values -= (_half(blocks, 2) * minimums)[..., None]
    return values


def _k_nibbles(quants: Blocks) -> NDArray[np.uint8]:
    """128 bytes to 256 quants: each run of 32 bytes gives its low halves, then its high ones."""
    return _nibbles(quants.reshape(-1, 32)).reshape(len(quants), 256)


def _q4_k(blocks: Blocks) -> Floats:
    return _scale_k(blocks, _k_nibbles(blocks[:, 16:144]))


def _q5_k(blocks: Blocks) -> Floats:
    flags = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]  # (blocks, 8, 32)
    fifth = ((flags & np.uint8(1)) << np.uint8(4)).reshape(-1, 256)
    return _scale_k(blocks, _k_nibbles(blocks[:, 48:176]) | fifth)


def _q6_k(blocks: Blocks) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([[0], [4]], np.uint8)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    quants = (low & 15).reshape(-1, 2, 4, 32) | ((high & 3) << 4)
    values = quants.reshape(-1, 16, 16).astype(np.float32)
    values -= 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    values *= (_half(blocks, 208) * scales)[..., None]
    return values


FORMATS = {
    "F32": Format(1, 4, _f32),
    "F16": Format(1, 2, _f16),
    "BF16": Format(1, 2, _bf16),
    "Q8_0": Format(32, 34, _q8_0),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q5_0": Format(32, 22, _q5_0),
    "Q5_1": Format(32, 24, _q5_1),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
}
