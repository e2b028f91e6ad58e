"""Maps a file into memory, read-only."""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelFileError


def map_file(path: Path) -> tuple[NDArray[np.uint8], mmap.mmap]:
    """The file's bytes as an array and as the map below it; no copy."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # what mmap raises for nothing to map
        raise ModelFileError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    return np.frombuffer(mapped, np.uint8), mapped
