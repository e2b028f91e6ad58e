"""The private folder that the sockets of a server's workers live in, and the ZeroMQ context.

The folder is locked by its owner, so that the next server can tell a folder in use from one that a
killed server left behind.
"""

import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq

from headrace.errors import ConfigurationError
from headrace.worker.channel import Channel, tuned
from headrace.worker.frames import FROM_WORKER, FromWorker

PREFIX = "headrace-"
LOCK = "lock"
MAX_PATH_BYTES = 107  # sun_path, less its final zero
LONGEST_NAME = "99999999"


class Sockets:
    """Makes endpoints for workers until it is closed."""

    def __init__(self, base: Path | None = None) -> None:
        base = base or _short_base()
        _sweep(base)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # mode 0700
        if len(os.fsencode(self.folder / LONGEST_NAME)) > MAX_PATH_BYTES:
            self.folder.rmdir()
            raise ConfigurationError(
                f"{base}: too long a path for sockets ({MAX_PATH_BYTES} bytes); set TMPDIR"
            )
        self._lock = _lock(self.folder)
        self._context = zmq.Context()
        self._numbers = itertools.count(1)

    def listen(
        self, *, receive: Callable[[FromWorker], None], broken: Callable[[str], None]
    ) -> tuple[str, Channel[FromWorker]]:
        """Bind a new endpoint for one worker process."""
        endpoint = f"ipc://{self.folder / str(next(self._numbers))}"
        socket = tuned(self._context.socket(zmq.DEALER))
        socket.bind(endpoint)
        return endpoint, Channel(socket, FROM_WORKER, receive=receive, broken=broken)

    def close(self) -> None:
        """End ZeroMQ's threads and remove the folder; every channel must be closed."""
        self._context.term()
        shutil.rmtree(self.folder)
        os.close(self._lock)


def _short_base() -> Path:
    """The usual place for temporary files, unless its path is too long for sockets."""
    base = Path(tempfile.gettempdir())
    room = len(os.fsencode(base)) + len(f"/{PREFIX}xxxxxxxx/{LONGEST_NAME}")
    return base if room <= MAX_PATH_BYTES else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def _lock(folder: Path) -> int:
    fresh = folder / "lock.new"
    lock = os.open(fresh, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    fresh.rename(folder / LOCK)  # there is never an unlocked file of that name in a living folder
    return lock


def _sweep(base: Path) -> None:
    """Remove folders whose owner was killed."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError, BlockingIOError, PermissionError):
            if folder.stat().st_uid == os.getuid() and stat.S_ISDIR(folder.lstat().st_mode):
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
