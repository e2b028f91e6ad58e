"""Reads a GGUF container: its metadata and where its tensors lie. Knows no architecture.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3). Our own reader
because the `gguf` package takes seconds for a large vocabulary; see docs/decisions.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError
from headrace.modelfiles.mapped import map_file
from headrace.modelfiles.quantization import FORMATS

Value = bool | int | float | str | list[str] | NDArray[np.generic]

_MAX_DIMENSIONS = 4
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
# The ids of ggml's tensor types; those that we cannot read are here for the error's sentence.
_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's place in the file; `shape` has its fastest dimension last, as numpy's."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An opened container. Numeric arrays of the metadata are views of the mapped file."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, GGUFTensor]
    header_size: int
    data: NDArray[np.uint8]


def open_gguf(path: Path) -> GGUFFile:
    """Map a GGUF file and read its header; every length in it is checked against the file."""
    data, mapped = map_file(path)
    return _Reader(path, data, mapped).read()


class _Reader:
    """A cursor over the header that never leaves the file."""

    def __init__(self, path: Path, data: NDArray[np.uint8], mapped: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._mapped = mapped
        self._size = len(mapped)
        self._at = 0

    def read(self) -> GGUFFile:
        if self._bytes(4, "magic") != b"GGUF":
            raise self._error("does not start with 'GGUF': not a GGUF file")
        version = self._scalar("<I", "version")
        if version not in (2, 3):
            raise self._error(f"has GGUF version {version}; supported are 2 and 3 (little-endian)")
        num_tensors = self._count("the number of tensors")
        num_values = self._count("the number of metadata values")
        metadata = dict(self._pair() for _ in range(num_values))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        header_size = self._at
        start = self._aligned(metadata)
        tensors = {info[0]: self._place(*info, start) for info in infos}
        if len(tensors) != len(infos):
            raise self._error("names a tensor twice")
        return GGUFFile(self._path, metadata, tensors, header_size, self._data)

    def _pair(self) -> tuple[str, Value]:
        key = self._string("a metadata key")
        return key, self._value(int(self._scalar("<I", key)), key)

    def _value(self, kind: int, key: str) -> Value:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], key)
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        raise self._error(f"metadata {key!r} has the unknown value type {kind}")

    def _array(self, key: str) -> Value:
        kind = int(self._scalar("<I", key))
        count = self._count(key)
        if kind == _STRING:
            return self._strings(count, key)
        if kind not in _SCALARS:
            raise self._error(f"metadata {key!r} is an array of the unsupported type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        start = self._skip(count * dtype.itemsize, key)
        return self._data[start : self._at].view(dtype)

    def _strings(self, count: int, key: str) -> list[str]:
        """The hot loop of opening a file: a vocabulary has up to a quarter of a million."""
        mapped, size, at, length_of = self._mapped, self._size, self._at, struct.Struct("<Q")
        texts = []
        try:
            for _ in range(count):
                (length,) = length_of.unpack_from(mapped, at)
                end = at + 8 + length
                if end > size:
                    raise self._truncated(key)
                texts.append(mapped[at + 8 : end].decode())
                at = end
        except struct.error:
            raise self._truncated(key) from None
        except UnicodeDecodeError:
            raise self._error(f"metadata {key!r} holds a text that is not UTF-8") from None
        self._at = at
        return texts

    def _tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string("a tensor's name")
        num_dimensions = int(self._scalar("<I", name))
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"tensor {name!r} has {num_dimensions} dimensions; expected 1 to 4")
        shape = tuple(self._count(name) for _ in range(num_dimensions))[::-1]
        kind = int(self._scalar("<I", name))
        return name, kind, shape, int(self._scalar("<Q", name))

    def _place(
        self, name: str, kind: int, shape: tuple[int, ...], offset: int, base: int
    ) -> GGUFTensor:
        kind_name = _KINDS.get(kind, f"number {kind}")
        if kind_name not in FORMATS:
            raise self._error(
                f"tensor {name!r} has the type {kind_name}; supported are {', '.join(FORMATS)}"
            )
        stored = FORMATS[kind_name]
        if shape[-1] % stored.block_length:
            raise self._error(
                f"tensor {name!r} of shape {list(shape)} has rows that are no multiple of "
                f"{stored.block_length}, the block of {kind_name}"
            )
        num_bytes = prod(shape) // stored.block_length * stored.block_bytes
        start, end = base + offset, base + offset + num_bytes
        if end > self._size:
            raise self._error(
                f"truncated: tensor {name!r} is expected at bytes {start} to {end}, "
                f"the file ends at {self._size}"
            )
        return GGUFTensor(kind_name, shape, start, end)

    def _aligned(self, metadata: dict[str, Value]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}; expected a power of two")
        return -(-self._at // alignment) * alignment

    def _string(self, what: str) -> str:
        raw = self._bytes(self._count(what), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"{what!r} holds a text that is not UTF-8") from None

    def _count(self, what: str) -> int:
        """A number of things that take at least a byte each, so it is bounded by the file."""
        count = int(self._scalar("<Q", what))
        if count > self._size * 2:
            raise self._error(f"corrupt: {what!r} claims a length of {count}")
        return count

    def _scalar(self, layout: str, what: str) -> bool | int | float:
        start = self._skip(struct.calcsize(layout), what)
        value: bool | int | float = struct.unpack_from(layout, self._mapped, start)[0]
        return value

    def _bytes(self, count: int, what: str) -> bytes:
        start = self._skip(count, what)
        return self._mapped[start : self._at]

    def _skip(self, count: int, what: str) -> int:
        start, self._at = self._at, self._at + count
        if self._at > self._size:
            raise self._truncated(what)
        return start

    def _truncated(self, what: str) -> ModelFileError:
        return self._error(f"truncated: the file ends at {self._size} bytes, inside {what!r}")

    def _error(self, sentence: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: {sentence}")
