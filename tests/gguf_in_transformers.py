"""Lets transformers read a GGUF file in seconds instead of a minute; what it reads is the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest


@contextmanager
def quick_gguf_reader() -> Iterator[None]:
    """Each file is parsed once, where transformers asks three times, and from a plain array.

    A vocabulary is a million slices of the file, and a slice of a memory map costs ten times as
    much as one of an array over the same bytes.
    """
    map_file, create = np.memmap, gguf.GGUFReader

    def map_plainly(*args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return map_file(*args, **kwargs).view(np.ndarray)

    @cache
    def read(path: Path) -> gguf.GGUFReader:
        return create(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", map_plainly)
        patch.setattr(gguf, "GGUFReader", read)
        yield
