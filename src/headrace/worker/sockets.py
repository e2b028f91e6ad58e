"""The private folder that the sockets of a server's workers live in, and the ZeroMQ context.

Its owner holds a lock on the folder: so the next server can tell a folder in use from one that a
killed server left behind, and systemd-tmpfiles leaves it alone.
"""

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq

from headrace.errors import ConfigurationError
from headrace.worker.channel import Channel, tuned
from headrace.worker.frames import FROM_WORKER, FromWorker

PREFIX = "headrace-"
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
        """Bind a new endpoint for one worker process; OSError when that cannot be."""
        endpoint = f"ipc://{self.folder / str(next(self._numbers))}"
        socket = tuned(self._context.socket(zmq.DEALER))
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise OSError(error.errno, error.strerror, endpoint) from None
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
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    return lock


def _sweep(base: Path) -> None:
    """Remove folders whose owner was killed."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError, PermissionError):
            if folder.lstat().st_uid == os.getuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock = _lock(folder)
    try:
        if any(folder.iterdir()):  # an empty one may be about to be locked
            shutil.rmtree(folder)
    finally:
        os.close(lock)
