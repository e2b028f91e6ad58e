"""Memory for constants that the plugin reads while compiling and rarely again.

The plugin keeps the uncompiled constants alive beside its own packed copy. They lie in a mapped,
unlinked file, so that the system may take their pages away and bring them back.
"""

import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_ALIGNMENT = 64  # a cache line, and what vector loads like
_PLACES = (Path("/var/tmp"), Path(tempfile.gettempdir()))  # noqa: S108 (unlinked; on disk first)

_PAGE_OUT_SECONDS = 0.05


class Arena:
    """Arrays side by side in one mapping of `size` bytes; padding comes on top."""

    def __init__(self, size: int, num_arrays: int) -> None:
        self._memory = _map(size + num_arrays * _ALIGNMENT)
        self._end = 0

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A zeroed array; it stays valid as long as itself or the arena is held."""
        kind = np.dtype(dtype)
        start, count = self._end, int(np.prod(shape))
        self._end = -(-(start + count * kind.itemsize) // _ALIGNMENT) * _ALIGNMENT
        return np.frombuffer(self._memory, kind, count, start).reshape(shape)

    def page_out(self) -> None:
        """Give the pages back; reading an array brings its pages in again."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def paging_out(self) -> Iterator[None]:
        """Give pages back again and again while the block runs: each is read about once there."""
        done = threading.Event()
        pager = threading.Thread(target=self._page_out_until, args=(done,), name="arena-pager")
        pager.start()
        try:
            yield
        finally:
            done.set()
            pager.join()
            self.page_out()

    def _page_out_until(self, done: threading.Event) -> None:
        while not done.wait(_PAGE_OUT_SECONDS):
            self.page_out()


def _map(size: int) -> mmap.mmap:
    for place in _PLACES:
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                os.posix_fallocate(
                    file.fileno(), 0, size
                )  # a full disk says so here, not by SIGBUS
                return mmap.mmap(file.fileno(), size)
        except OSError:
            continue  # the next place; the last resort is memory that only swap can take
    return mmap.mmap(-1, size, flags=mmap.MAP_SHARED)
