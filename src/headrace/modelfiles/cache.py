"""A cache of downloaded models that shows only whole ones, to any number of processes."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from headrace.errors import ModelFileError

Result = TypeVar("Result")

MAX_NAME = 200  # characters of a folder's; locks and downloads beside it have longer ones

_INTERVAL = 0.2  # seconds between two looks at a growing download


def cached(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, filled once: another process waits, and an interrupted fill starts anew."""
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _fill(folder, fill)
    except OSError as error:
        raise ModelFileError(f"{folder}: cannot be written: {error}") from None
    return folder


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    _remove_partial(folder)
    # A name of its own: nobody who still writes into an older one can reach it.
    partial = folder.with_name(f"{folder.name}.partial-{uuid4().hex[:8]}")
    partial.mkdir()
    try:
        fill(partial)
        _sync(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_partial(folder: Path) -> None:
    """Remove what killed processes left: we hold the lock, so none of them fills it."""
    name = re.compile(re.escape(folder.name) + r"\.partial-[0-9a-f]{8}")
    for path in folder.parent.iterdir():
        if name.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring the content to disk before the rename that declares it whole."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def report_growth(
    work: Callable[[], Result],
    folder: Path,
    total: Callable[[], float],
    report: Callable[[float], None],
) -> Result:
    """Do work that downloads into a folder; meanwhile report the share of `total()` bytes there.

    `report` is called on the calling thread, with rising shares.
    """
    reported = 0.0
    with ThreadPoolExecutor(1, "download") as pool:
        future = pool.submit(work)
        while not wait([future], _INTERVAL).done:
            expected = total()
            share = min(_size(folder) / expected, 1.0) if expected else 0.0
            if share > reported:
                reported = share
                report(share)
    return future.result()


def _size(folder: Path) -> int:
    """Bytes in a folder whose files come and go while we look."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except FileNotFoundError:
            continue
    return size
