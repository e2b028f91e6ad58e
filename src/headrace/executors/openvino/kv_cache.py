"""The memory of the paged cache of keys and values. Knows nothing of who uses a block.

Memory is mapped, not filled: a block costs nothing until its first token is written.
"""

import math
import mmap
from collections.abc import Sequence

import numpy as np
import openvino as ov


class KVCache:
    """One tensor for keys and one for values a layer, laid out as the compiled model wants them."""

    def __init__(self, ports: Sequence[ov.ConstOutput], num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.tensors = {port.get_any_name(): _mapped(port, num_blocks) for port in ports}


def block_size(ports: Sequence[ov.ConstOutput]) -> int:
    """Tokens a block: the rows of a value cache block; key blocks may add rows for scales."""
    value = next(port for port in ports if port.get_any_name().startswith("value_cache."))
    return int(value.get_partial_shape()[2].get_length())


def block_bytes(ports: Sequence[ov.ConstOutput]) -> int:
    """Bytes of one block over all layers."""
    return sum(_bytes(port, 1) for port in ports)


def _shape(port: ov.ConstOutput, num_blocks: int) -> list[int]:
    shape = port.get_partial_shape()
    return [num_blocks, *(shape[axis].get_length() for axis in (1, 2, 3))]


def _bytes(port: ov.ConstOutput, num_blocks: int) -> int:
    return math.prod(_shape(port, num_blocks)) * int(port.get_element_type().size)


def _mapped(port: ov.ConstOutput, num_blocks: int) -> ov.Tensor:
    # a mapping of its own is zero (freed heap memory may hold NaN) and shares no page with others
    memory = mmap.mmap(-1, _bytes(port, num_blocks), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return ov.Tensor(
        np.frombuffer(memory, np.uint8), ov.Shape(_shape(port, num_blocks)), port.get_element_type()
    )
