"""Reads safetensors files, one or sharded. Format: https://github.com/huggingface/safetensors."""

import json
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from headrace.errors import ModelFileError
from headrace.modelfiles.mapped import map_file
from headrace.modelfiles.quantization import FORMATS
from headrace.modelfiles.weights import StoredTensor

_PREFIX = 8  # bytes of the header's length
_KINDS = ("F32", "F16", "BF16")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


class SafetensorsFile:
    """One mapped file; opening it checks every tensor's place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, mapped = map_file(path)
        self.header = self._header(bytes(mapped[:_PREFIX]), mapped)
        self._tensors = self._parsed()

    def tensors(self) -> dict[str, StoredTensor]:
        return self._tensors

    def _header(self, prefix: bytes, mapped: Any) -> bytes:  # noqa: ANN401  # as map_file gives it
        size = int.from_bytes(prefix, "little")
        if len(prefix) < _PREFIX or size > len(mapped) - _PREFIX:
            raise self._error(
                f"truncated or not safetensors: the header claims {size} bytes, "
                f"the file has {len(mapped)}"
            )
        return bytes(mapped[_PREFIX : _PREFIX + size])

    def _parsed(self) -> dict[str, StoredTensor]:
        entries = parse_json(self.path, self.header)
        entries.pop("__metadata__", None)
        body = self._data[_PREFIX + len(self.header) :]
        places = {name: self._place(name, entry, body.size) for name, entry in entries.items()}
        self._refuse_overlaps(places)
        return {
            name: StoredTensor(kind, shape, body[start:end])
            for name, (kind, shape, start, end) in places.items()
        }

    def _place(self, name: str, entry: object, size: int) -> tuple[str, tuple[int, ...], int, int]:
        kind, shape, start, end = self._entry(name, entry)
        if end > size:
            raise self._error(
                f"truncated: tensor {name!r} ends at byte {end} of the data, which has {size}"
            )
        # Other kinds may lie beside the weights (counters, masks); they fail when asked for.
        expected = prod(shape) * FORMATS[kind].block_bytes if kind in _KINDS else end - start
        if end - start != expected:
            raise self._error(
                f"tensor {name!r} of {kind} {list(shape)} has {end - start} bytes; "
                f"expected {expected}"
            )
        return kind, shape, start, end

    def _entry(self, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [start, end]} if all(
                type(n) is int and n >= 0 for n in (*shape, start, end)
            ):
                if start <= end:
                    return kind, tuple(shape), start, end
        raise self._error(f"tensor {name!r} has no valid dtype, shape and data_offsets")

    def _refuse_overlaps(self, places: Mapping[str, tuple[str, tuple[int, ...], int, int]]) -> None:
        spans = sorted((start, end, name) for name, (*_, start, end) in places.items())
        for (_, end, before), (start, _, name) in pairwise(spans):
            if start < end:
                raise self._error(f"tensors {before!r} and {name!r} overlap")

    def _error(self, sentence: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {sentence}")


def open_folder(folder: Path) -> list[SafetensorsFile]:
    """The files of a checkpoint: those that an index names, else the single one."""
    index = folder / _INDEX
    if not index.is_file():
        if not (folder / _SINGLE).is_file():
            raise ModelFileError(f"{folder}: holds no {_SINGLE} and no {_INDEX}")
        return [SafetensorsFile(folder / _SINGLE)]
    return [SafetensorsFile(folder / name) for name in _shards(index)]


def _shards(index: Path) -> list[str]:
    names = parse_json(index, index.read_bytes()).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise ModelFileError(f"{index}: weight_map is missing; expected tensor to file names")
    shards = sorted(set(names.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise ModelFileError(f"{index}: names the file {shard!r}; expected one in its folder")
    return shards


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """A JSON object, or a ModelFileError that names the file."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise ModelFileError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: expected a JSON object")
    return value
