"""From a checkpoint to packed weights: out of the cache, or packed now, telling how far that is."""

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from headrace.executors.executor import Progress
from headrace.executors.native.background import in_background
from headrace.executors.native.entries import Entry, entries
from headrace.executors.native.kernels import Weights
from headrace.executors.native.packed import PackedFile, keeping, packed_file
from headrace.executors.native.precision import Mode
from headrace.modelfiles.model import ModelFiles

FOLDER = "packed"

_VERSION = 1  # of what is put into the entries; another one makes other files
_MATRIX_BYTES = {"bf16": 2.0, "i8": 1.0, "i8a8": 1.0, "q8": 1.0625, "q4": 0.625}  # a number, about
_OTHER_BYTES = {"table": 2.0, "vector": 4.0}


@dataclass(frozen=True, slots=True)
class Packing:
    """How a model is packed."""

    mode: Mode
    instruction_set: str
    num_threads: int


def load_weights(
    files: ModelFiles, packing: Packing, cache_dir: Path | None, progress: Progress
) -> PackedFile[Weights]:
    """The packed weights, mapped from `cache_dir` where there is one."""
    wanted = entries(files.weights, files.config, packing.mode)
    tag = _tag(files, packing)

    def open_file(path: Path) -> Weights | None:
        progress("reading", 0.0)
        found: Weights | None = Weights.open(
            str(path), tag, num_threads=packing.num_threads, isa=packing.instruction_set
        )
        if found is not None:
            progress("reading", 1.0)
        return found

    def make(path: Path | None) -> Weights:
        return in_background(lambda: _pack(wanted, tag, path, packing, progress))

    if cache_dir is None:
        return PackedFile(make(None), None)
    folder = cache_dir / FOLDER
    return packed_file(folder, tag[:32], packed_size(wanted), open_file=open_file, make=make)


def _pack(
    wanted: list[Entry], tag: str, path: Path | None, packing: Packing, progress: Progress
) -> Weights:
    with nullcontext() if path is None else keeping():
        weights: Weights = Weights.create(
            None if path is None else str(path),
            tag,
            [(entry.name, entry.role, entry.kind, entry.n, entry.k) for entry in wanted],
            num_threads=packing.num_threads,
            isa=packing.instruction_set,
        )
    total, done = sum(entry.num_numbers for entry in wanted), 0
    progress("packing", 0.0)
    for entry in wanted:
        weights.put(entry.name, entry.read(), interleaved=entry.interleaved)
        done += entry.num_numbers
        progress("packing", done / total)
    with nullcontext() if path is None else keeping():
        weights.finish()
    return weights


def packed_size(wanted: list[Entry]) -> int:
    """About how many bytes the entries take once they are packed."""
    return int(sum(entry.num_numbers * _bytes_of_a_number(entry) for entry in wanted))


def _bytes_of_a_number(entry: Entry) -> float:
    return _MATRIX_BYTES[entry.kind] if entry.role == "matrix" else _OTHER_BYTES[entry.role]


def _tag(files: ModelFiles, packing: Packing) -> str:
    """A digest of all that the packed numbers follow from.

    The one of the model samples a checkpoint; sizes and times tell of a change between the samples.
    """
    parts = [files.digest, packing.mode, packing.instruction_set, str(_VERSION)]
    parts += [f"{p.name} {(at := p.stat()).st_size} {at.st_mtime_ns}" for p in _on_disk(files.path)]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _on_disk(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    return [path] if path.is_file() else []
