"""A folder of packed files, shared by any number of processes and bounded in size.

A file is named after all that its content follows from, appears whole, and is locked (shared) by
every process that has it mapped. Whoever makes one is alone at it, and first sweeps away those that
nobody has used for longest. Knows nothing of what is in a file.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import structlog

MAX_BYTES = 32 << 30
SUFFIX = ".weights"

_LOCK = ".lock"
_STALE = 3600.0  # seconds after which nobody still writes to a file that has no name of ours
_SPARE = 1 << 30  # bytes that the disk keeps

Content = TypeVar("Content")

log = structlog.get_logger("headrace.executors")


class PackedFile(Generic[Content]):
    """One file in use: its content, and the lock that keeps it from being swept."""

    def __init__(self, content: Content, held: BinaryIO | None) -> None:
        self.content = content
        self._held = held

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def packed_file(
    folder: Path,
    name: str,
    size: int,
    *,
    open_file: Callable[[Path], Content | None],
    make: Callable[[Path | None], Content],
    max_bytes: int = MAX_BYTES,
) -> PackedFile[Content]:
    """Open the file, or make it of about `size` bytes; `make(None)` where there is no room."""
    path = folder / f"{name}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{name}{_LOCK}"):
            if (opened := _opened(path, open_file)) is not None:
                return opened
            _make_room(folder, path, size, max_bytes)
            content = make(path)
            return PackedFile(content, _hold(path))
    except OSError as error:
        log.warning("weights.not_kept", folder=str(folder), reason=error.strerror or str(error))
    return PackedFile(make(None), None)


def _opened(path: Path, open_file: Callable[[Path], Content | None]) -> PackedFile[Content] | None:
    held = _hold(path)
    if held is None:
        return None
    with ExitStack() as stack:
        stack.enter_context(held)
        content = open_file(path)
        if content is None:
            return None
        os.utime(path)  # the time of the last use orders the sweep
        stack.pop_all()
    return PackedFile(content, held)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hold(path: Path) -> BinaryIO | None:
    """The file, open and locked against sweeping; None when there is none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _make_room(folder: Path, path: Path, size: int, max_bytes: int) -> None:
    """Sweep until `size` more bytes are within bounds; OSError when there is no space for them."""
    _remove_abandoned(folder)
    files = sorted((p for p in folder.glob(f"*{SUFFIX}") if p != path), key=_last_use)
    total = size + sum(map(_size, files))
    for file in files:
        if total <= max_bytes and shutil.disk_usage(folder).free >= size + _SPARE:
            break
        total -= _sweep(file)
    free = shutil.disk_usage(folder).free
    if total > max_bytes or free < size + _SPARE:
        raise OSError(f"{size} bytes do not fit: {free} are free, {max_bytes} may be kept")


def _sweep(path: Path) -> int:
    """Remove a file that nobody uses; the bytes that this frees."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = _size(path)
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return 0
    path.with_suffix(_LOCK).unlink(missing_ok=True)
    log.info("weights.swept", file=path.name, bytes=size)
    return size


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes were writing."""
    for path in folder.iterdir():
        if path.suffix not in {SUFFIX, _LOCK} and _last_use(path) < time.time() - _STALE:
            path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
