"""A folder of packed files, shared by any number of processes and bounded in size.

A file is named after all that its content follows from, appears whole, and is locked (shared) by
every process that has it mapped. Whoever makes one is alone at it, and first sweeps away those that
nobody has used for longest. Knows nothing of what is in a file.
"""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import structlog

MAX_BYTES = 32 << 30
SUFFIX = ".weights"

_LOCK = ".lock"
_UNNAMED = f"*{SUFFIX}.??????"  # what is being written, until it has its name
_STALE = 3600.0  # seconds after which nobody still writes to one
_SPARE = 1 << 30  # bytes that the disk keeps

Content = TypeVar("Content")

log = structlog.get_logger("headrace.executors")


class NotKeptError(Exception):
    """The folder cannot take a file, for the reason in its text."""


@contextmanager
def keeping() -> Iterator[None]:
    """Around what only the folder can make fail: an OSError within is a NotKeptError."""
    try:
        yield
    except OSError as error:
        raise NotKeptError(error.strerror or str(error)) from error


class PackedFile(Generic[Content]):
    """One file in use: its content, and the lock that keeps it from being swept."""

    def __init__(self, content: Content, held: BinaryIO | None) -> None:
        self.content = content
        self._held = held

    @property
    def is_private(self) -> bool:
        """Whether the content is this process's own memory, and not a mapped file."""
        return self._held is None

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
    """Open the file, or make it of about `size` bytes; `make(None)` where it cannot be kept.

    `make` says with `keeping` which of its errors are the folder's; all others are the caller's.
    """
    path = folder / f"{name}{SUFFIX}"
    try:
        with ExitStack() as stack:
            with keeping():
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_alone(folder / f"{name}{_LOCK}"))
                if (opened := _opened(path, open_file)) is not None:
                    return opened
                _make_room(folder, path, size, max_bytes)
            content = make(path)
            with keeping():
                return PackedFile(content, _hold(path))
    except NotKeptError as error:
        log.warning("weights.not_kept", folder=str(folder), reason=str(error))
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
    while True:
        with path.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):  # and was not swept while we waited for it
                yield
                return


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _hold(path: Path) -> BinaryIO | None:
    """The file, open and locked against sweeping; None when there is none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _make_room(folder: Path, path: Path, size: int, max_bytes: int) -> None:
    """Sweep until `size` more bytes fit; OSError, and nothing is swept, when they cannot."""
    _remove_abandoned(folder)
    files = sorted((p for p in _regular(folder, f"*{SUFFIX}") if p != path), key=_last_use)
    total = size + sum(map(_size, files))
    unused = [file for file in files if _is_unused(file)]
    _require_room(folder, size, total, max_bytes, sum(map(_size, unused)))
    for file in unused:
        if total <= max_bytes and shutil.disk_usage(folder).free >= size + _SPARE:
            break
        total -= _sweep(file)
    _require_room(folder, size, total, max_bytes, 0)


def _require_room(folder: Path, size: int, total: int, max_bytes: int, sweepable: int) -> None:
    free = shutil.disk_usage(folder).free
    if total - sweepable > max_bytes or free + sweepable < size + _SPARE:
        raise OSError(f"{size} bytes do not fit: {free} are free, {max_bytes} may be kept")


def _is_unused(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _sweep(path: Path) -> int:
    """Remove a file that nobody uses or makes, and its lock; the bytes that this frees."""
    lock = path.with_suffix(_LOCK)
    try:
        with lock.open("wb") as alone, path.open("rb") as file:
            for each in (alone, file):
                fcntl.flock(each, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(alone, lock):
                return 0
            size = _size(path)
            path.unlink()
            lock.unlink()
    except (BlockingIOError, FileNotFoundError):
        return 0
    log.info("weights.swept", file=path.name, bytes=size)
    return size


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes were writing, and nothing that may be another's."""
    for path in _regular(folder, _UNNAMED):
        if _last_use(path) < time.time() - _STALE:
            path.unlink(missing_ok=True)


def _regular(folder: Path, pattern: str) -> Iterator[Path]:
    for path in folder.glob(pattern):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode):
            yield path


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
