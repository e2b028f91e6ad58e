"""A checkpoint's tensors under one set of names, whatever file holds them.

Names are those of Hugging Face checkpoints (`model.layers.0.self_attn.q_proj.weight`, ...), rows
and columns as in `torch.nn.Linear` (out_features, in_features), q and k in rotate-half order.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in the file: `kind` is F32, F16, BF16 or a GGUF type such as Q4_K."""

    kind: str
    shape: tuple[int, ...]  # elements, not bytes
    data: NDArray[np.uint8]  # the mapped bytes, no copy


class Weights(Protocol):
    """Reads tensors by name; raises ModelFileError naming file, tensor and what was expected."""

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored(self, name: str) -> StoredTensor: ...

    def float32(self, name: str) -> NDArray[np.float32]: ...

    def bfloat16(self, name: str) -> NDArray[np.uint16]:
        """The tensor rounded to nearest even, as bf16 bit patterns."""
        ...
