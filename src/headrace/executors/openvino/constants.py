"""Weights as graph constants, in the form in which they are to be stored."""

from typing import Literal, Protocol

import numpy as np
import openvino as ov
import openvino.op as internal_op
import openvino.opset13 as op
from numpy.typing import NDArray

from headrace.modelfiles.weights import Weights

Storage = Literal["fp32", "bf16", "int8"]


class Constants(Protocol):
    def matrix(self, name: str) -> ov.Node: ...
    def vector(self, name: str) -> ov.Node: ...


class WeightConstants:
    def __init__(self, weights: Weights, storage: str) -> None:
        self._weights = weights
        self._matrix = {
            "fp32": self._fp32,
            "bf16": self._bf16,
            "fp16": self._fp16,
            "int8": self._int8,
        }[storage]
        self.keep = []
        self.nodes = {}

    def matrix(self, name: str) -> ov.Node:
        if name not in self.nodes:
            self.nodes[name] = self._matrix(name)
        return self.nodes[name]

    def vector(self, name: str) -> ov.Node:
        return op.constant(self._weights.float32(name))

    def _fp32(self, name: str) -> ov.Node:
        x = np.ascontiguousarray(self._weights.float32(name))
        self.keep.append(x)
        return op.constant(x, shared_memory=True)

    def _fp16(self, name):
        return op.convert(op.constant(self._weights.float32(name).astype(np.float16)), "f32")

    def _bf16(self, name: str) -> ov.Node:
        bits = self._weights.bfloat16(name)
        tensor = ov.Tensor(ov.Type.bf16, ov.Shape(bits.shape))
        tensor.data.view(np.uint16)[...] = bits
        return op.convert(internal_op.Constant(tensor), "f32")

    def _int8(self, name: str) -> ov.Node:
        weight = self._weights.float32(name)
        scale = np.abs(weight).max(1, keepdims=True) / 127
        scale[scale == 0] = 1
        quantized = np.round(weight / scale).astype(np.int8)
        return op.multiply(op.convert(op.constant(quantized), "f32"), op.constant(scale))
