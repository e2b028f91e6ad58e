"""Weights as graph constants, in the form in which they are stored. Knows nothing of layers."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import numpy as np
import openvino as ov
import openvino.op as internal_op
import openvino.opset13 as op
from numpy.typing import DTypeLike, NDArray

from headrace.executors.openvino.arena import Arena
from headrace.executors.openvino.precision import Precision
from headrace.modelfiles.quantization import row_blocks, to_bfloat16, to_float32
from headrace.modelfiles.weights import StoredTensor, Weights

Convert = Callable[[NDArray[Any], slice, StoredTensor], None]
"""Stores a few rows of a checkpoint's tensor as those rows of ours."""

_STORED_BYTES = {"fp32": 4, "bf16": 2, "bf16 as fp32": 4, "int8": 1}


class Constants:
    """Makes a constant of a tensor, or of several stacked by rows, once.

    A constant is made before its values are there: they are read by `num_threads` threads while the
    graph is built, into memory that the constant shares. `wait` before anybody looks at them.
    """

    def __init__(
        self,
        weights: Weights,
        precision: Precision,
        report: Callable[[float], None],
        num_threads: int = 1,
    ) -> None:
        """`report` is told the share of values read so far, by the caller of `wait`."""
        self._weights = weights
        self._report = report
        self._matrices: dict[tuple[str, ...], ov.Node] = {}
        names = [name for name in weights.names() if len(weights.shape(name)) > 1]
        self._num_elements = sum(int(np.prod(weights.shape(name))) for name in names)
        self._form = _form(precision)
        self._make = {
            "fp32": self._fp32,
            "bf16": self._bf16,
            "bf16 as fp32": self._bf16_as_fp32,
            "int8": self._int8,
        }[self._form]
        self.arena = Arena(self._num_elements * _STORED_BYTES[self._form], len(names))
        self._readers = ThreadPoolExecutor(num_threads, "headrace-read")
        self._reads: list[Future[int]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all matrices, two a value at most: unpacking makes no larger model."""
        return self._num_elements * min(2, _STORED_BYTES[self._form])

    @property
    def joins_products(self) -> bool:
        """Whether products of one input are faster as one.

        They are where the plugin computes in fp32: it merges an activation into the product before
        it, which takes that from MLAS to a kernel that needs 1.6 times as long.
        """
        return self._form in {"fp32", "bf16 as fp32"}

    def matrix(self, *names: str) -> ov.Node:
        """(out_features, in_features) as fp32 to the graph, however it is stored."""
        if names not in self._matrices:
            self._matrices[names] = self._make(names)
        return self._matrices[names]

    def vector(self, name: str) -> ov.Node:
        return op.constant(self._weights.float32(name))

    def wait(self) -> None:
        """Return when every value is in its place; raise what a reader met."""
        num_read = 0
        try:
            for read in self._reads:
                num_read += read.result()
                self._report(num_read / self._num_elements)
        finally:
            self._readers.shutdown(cancel_futures=True)

    def _fp32(self, names: tuple[str, ...]) -> ov.Node:
        return op.constant(self._stacked(names, np.float32, _as_fp32), shared_memory=True)

    def _bf16(self, names: tuple[str, ...]) -> ov.Node:
        bits = self._stacked(names, np.uint16, _as_bf16)
        tensor = ov.Tensor(bits, ov.Shape(bits.shape), ov.Type.bf16)
        return op.convert(internal_op.Constant(tensor, shared_memory=True), "f32")

    def _bf16_as_fp32(self, names: tuple[str, ...]) -> ov.Node:
        return op.constant(self._stacked(names, np.float32, _as_rounded_fp32), shared_memory=True)

    def _int8(self, names: tuple[str, ...]) -> ov.Node:
        scales = np.empty((self._num_rows(names), 1), np.float32)

        def quantize(values: NDArray[Any], rows: slice, block: StoredTensor) -> None:
            values[rows], scales[rows] = quantized_rows(to_float32(block))

        stacked = self._stacked(names, np.int8, quantize)
        constant = op.convert(op.constant(stacked, shared_memory=True), "f32")
        return op.multiply(constant, op.constant(scales, shared_memory=True))

    def _stacked(self, names: tuple[str, ...], kind: DTypeLike, convert: Convert) -> NDArray[Any]:
        """Room for the tensors, one below the other, which the readers will fill."""
        width = self._weights.shape(names[0])[1]
        stacked = self.arena.take((self._num_rows(names), width), kind)

        def fill(name: str, start: int) -> int:
            tensor = self._weights.stored(name)
            for rows, block in row_blocks(tensor):
                convert(stacked, slice(start + rows.start, start + rows.stop), block)
            return math.prod(tensor.shape)

        for name, start in zip(names, self._starts(names), strict=True):
            self._reads.append(self._readers.submit(fill, name, start))
        return stacked

    def _num_rows(self, names: tuple[str, ...]) -> int:
        return sum(self._weights.shape(name)[0] for name in names)

    def _starts(self, names: tuple[str, ...]) -> list[int]:
        """Each tensor's first row in the stack."""
        rows = [self._weights.shape(name)[0] for name in names]
        return list(accumulate(rows[:-1], initial=0))


def quantized_rows(weight: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Whole numbers from -127 to 127, and the scale of each row, that is of each output channel."""
    scale = np.maximum(weight.max(1, keepdims=True), -weight.min(1, keepdims=True))
    scale /= np.float32(127)
    scale[scale == 0] = 1
    scaled = weight / scale
    return np.rint(scaled, out=scaled), scale


def _as_fp32(values: NDArray[Any], rows: slice, block: StoredTensor) -> None:
    values[rows] = to_float32(block)


def _as_bf16(values: NDArray[Any], rows: slice, block: StoredTensor) -> None:
    values[rows] = to_bfloat16(block)


def _as_rounded_fp32(values: NDArray[Any], rows: slice, block: StoredTensor) -> None:
    np.left_shift(to_bfloat16(block), 16, out=values[rows].view(np.uint32), dtype=np.uint32)


def _form(precision: Precision) -> str:
    """A CPU without bf16 unpacks bf16 into fp32 by itself, with more copies than we make."""
    if precision.weights == "bf16" and precision.compute == "f32":
        return "bf16 as fp32"
    return precision.weights
