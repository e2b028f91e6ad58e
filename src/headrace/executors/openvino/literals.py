"""The graph's own small constants. Knows no weights."""

import numpy as np
import openvino as ov
import openvino.opset13 as op
from numpy.typing import NDArray


class Literals:
    """Makes each constant once: the plugin's many passes over the graph visit every node."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, tuple[int, ...], bytes], ov.Node] = {}

    def array(self, values: NDArray[np.generic] | np.generic) -> ov.Node:
        key = values.dtype.str, values.shape, values.tobytes()
        if key not in self._nodes:
            self._nodes[key] = op.constant(values)
        return self._nodes[key]

    def ints(self, *values: int) -> ov.Node:
        """A list, as shapes and axes are given."""
        return self.array(np.array(values, np.int64))

    def axis(self, value: int) -> ov.Node:
        return self.array(np.int64(value))

    def number(self, value: float) -> ov.Node:
        return self.array(np.float32(value))
