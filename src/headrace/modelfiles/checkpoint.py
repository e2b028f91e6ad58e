"""Weights over mapped tensors, with what a file's format needs undone on the way out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.layout import expected_shapes
from headrace.modelfiles.quantization import FORMATS, to_bfloat16, to_float32
from headrace.modelfiles.weights import StoredTensor

Change = Callable[[StoredTensor], StoredTensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor where it lies: its file, its name there, and what turns it into ours."""

    path: Path
    name: str
    tensor: StoredTensor
    change: Change | None = None


class CheckpointWeights:
    """The Weights of one model; holds exactly the tensors that its config asks for."""

    def __init__(self, path: Path, entries: Mapping[str, Entry], config: ModelConfig) -> None:
        expected = expected_shapes(config)
        for name, shape in expected.items():
            _check(path, name, entries.get(name), shape)
        self._path = path
        self._entries = {name: entries[name] for name in expected}

    def names(self) -> frozenset[str]:
        return frozenset(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).tensor.shape

    def stored(self, name: str) -> StoredTensor:
        entry = self._entry(name)
        return entry.change(entry.tensor) if entry.change else entry.tensor

    def float32(self, name: str) -> NDArray[np.float32]:
        return to_float32(self.stored(name))

    def bfloat16(self, name: str) -> NDArray[np.uint16]:
        return to_bfloat16(self.stored(name))

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelFileError(f"{self._path}: the model has no tensor {name!r}")
        return entry


def _check(path: Path, name: str, entry: Entry | None, shape: tuple[int, ...]) -> None:
    if entry is None:
        raise ModelFileError(f"{path}: tensor {name!r} is missing; expected shape {list(shape)}")
    if entry.tensor.kind not in FORMATS:
        raise ModelFileError(
            f"{entry.path}: tensor {entry.name!r} has the type {entry.tensor.kind}; "
            f"supported are {', '.join(FORMATS)}"
        )
    if entry.tensor.shape != shape:
        raise ModelFileError(
            f"{entry.path}: tensor {entry.name!r} has shape {list(entry.tensor.shape)}; "
            f"the model's config expects {list(shape)}"
        )


def interleaved_to_halves(num_heads: int) -> Change:
    """Undo llama.cpp's order of q and k, which pairs neighbours: ours pairs halves of a head.

    Rows move whole, so quantized blocks stay as they are.
    """

    def change(tensor: StoredTensor) -> StoredTensor:
        rows = tensor.data.reshape(num_heads, -1, 2, tensor.data.size // tensor.shape[0])
        return StoredTensor(tensor.kind, tensor.shape, rows.swapaxes(1, 2).reshape(-1))

    return change


def add_one(tensor: StoredTensor) -> StoredTensor:
    """Fold the 1 that Gemma adds to its norm weights."""
    values = to_float32(tensor) + np.float32(1)
    return StoredTensor("F32", tensor.shape, values.reshape(-1).view(np.uint8))


def digest(headers: Iterable[bytes], tensors: Iterable[StoredTensor]) -> str:
    """Name a checkpoint's content: all of its headers and a sample out of every tensor.

    Reading the whole of a large model would cost seconds of every start. Retraining or requantizing
    changes every tensor throughout, so three samples of each tell versions apart.
    """
    content = hashlib.sha256()
    for header in headers:
        content.update(len(header).to_bytes(8, "little") + header)
    for tensor in tensors:
        size = tensor.data.size
        content.update(f"{tensor.kind}{tensor.shape}{prod(tensor.shape)}".encode())
        for start in (0, size // 2, max(size - _SAMPLE, 0)):
            content.update(tensor.data[start : start + _SAMPLE].tobytes())
    return content.hexdigest()


_SAMPLE = 1024  # bytes
