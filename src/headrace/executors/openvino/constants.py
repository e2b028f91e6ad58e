"""Weights as graph constants, in the form in which they are stored. Knows nothing of layers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import openvino.op as internal_op
import openvino.opset13 as op
from numpy.typing import DTypeLike, NDArray

from headrace.executors.openvino.arena import Arena
from headrace.executors.openvino.precision import Precision
from headrace.modelfiles.weights import Weights

_STORED_BYTES = {"fp32": 4, "bf16": 2, "bf16 as fp32": 4, "int8": 1}


class Constants:
    """Makes a constant of a tensor, or of several stacked by rows, once."""

    def __init__(
        self, weights: Weights, precision: Precision, report: Callable[[float], None]
    ) -> None:
        """`report` is told the share of tensors read so far."""
        self._weights = weights
        self._report = report
        self._matrices: dict[tuple[str, ...], ov.Node] = {}
        names = [name for name in weights.names() if len(weights.shape(name)) > 1]
        self._num_elements = sum(int(np.prod(weights.shape(name))) for name in names)
        self._num_read = 0
        self._form = _form(precision)
        self._make = {
            "fp32": self._fp32,
            "bf16": self._bf16,
            "bf16 as fp32": self._bf16_as_fp32,
            "int8": self._int8,
        }[self._form]
        self.arena = Arena(self._num_elements * _STORED_BYTES[self._form], len(names))

    @property
    def num_bytes(self) -> int:
        """Bytes of all matrices as stored."""
        return self._num_elements * _STORED_BYTES[self._form]

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
            self._num_read += sum(int(np.prod(self._weights.shape(name))) for name in names)
            self._report(self._num_read / self._num_elements)
        return self._matrices[names]

    def vector(self, name: str) -> ov.Node:
        return op.constant(self._weights.float32(name))

    def _fp32(self, names: tuple[str, ...]) -> ov.Node:
        return op.constant(
            self._stacked(names, np.float32, self._weights.float32), shared_memory=True
        )

    def _bf16(self, names: tuple[str, ...]) -> ov.Node:
        bits = self._stacked(names, np.uint16, self._weights.bfloat16)
        tensor = ov.Tensor(bits, ov.Shape(bits.shape), ov.Type.bf16)
        return op.convert(internal_op.Constant(tensor, shared_memory=True), "f32")

    def _bf16_as_fp32(self, names: tuple[str, ...]) -> ov.Node:
        return op.constant(self._stacked(names, np.float32, self._rounded), shared_memory=True)

    def _rounded(self, name: str) -> NDArray[np.float32]:
        return (self._weights.bfloat16(name).astype(np.uint32) << 16).view(np.float32)

    def _int8(self, names: tuple[str, ...]) -> ov.Node:
        scales: list[NDArray[np.float32]] = []

        def quantized(name: str) -> NDArray[np.int8]:
            weight = self._weights.float32(name)
            scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)  # per output channel
            scale[scale == 0] = 1
            scales.append(scale)
            values: NDArray[np.int8] = np.rint(weight / scale).astype(np.int8)
            return values

        stacked = self._stacked(names, np.int8, quantized)
        constant = op.convert(op.constant(stacked, shared_memory=True), "f32")
        return op.multiply(constant, op.constant(np.concatenate(scales)))

    def _stacked(
        self, names: tuple[str, ...], kind: DTypeLike, read: Callable[[str], NDArray[Any]]
    ) -> NDArray[Any]:
        rows = [self._weights.shape(name)[0] for name in names]
        stacked = self.arena.take((sum(rows), self._weights.shape(names[0])[1]), kind)
        start = 0
        for name, count in zip(names, rows, strict=True):
            stacked[start : start + count] = read(name)
            start += count
        return stacked


def _form(precision: Precision) -> str:
    """A CPU without bf16 unpacks bf16 into fp32 by itself, with more copies than we make."""
    if precision.weights == "bf16" and precision.compute == "f32":
        return "bf16 as fp32"
    return precision.weights
