"""The private folder that the sockets of a server's workers live in, and the ZeroMQ context.

Its owner holds a lock on the folder: so the next server can tell a folder in use from one that a
killed server left behind, and systemd-tmpfiles leaves it alone. A marker file tells our folders
from the user's own: only what we made ourselves is ever removed, name by name.
"""

import fcntl
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq

from headrace.errors import ConfigurationError
from headrace.worker.channel import Channel, tuned
from headrace.worker.frames import FROM_WORKER, FromWorker

PREFIX = "headrace-sockets-"
MARKER = ".headrace-sockets"
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
        (self.folder / MARKER).touch()  # only now may others look whether it is abandoned
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
        _remove(self.folder, self._lock)
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
            if folder.lstat().st_uid == os.getuid() and (folder / MARKER).is_file():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock = _lock(folder)
    try:
        _remove(folder, lock)
    finally:
        os.close(lock)


def _remove(folder: Path, lock: int) -> None:
    """Remove a locked folder, unless it holds anything that is not ours."""
    names = [name for name in os.listdir(lock) if name != MARKER]
    if not all(_is_socket(name, lock) for name in names):
        return
    for name in (*names, MARKER):
        os.unlink(name, dir_fd=lock)
    folder.rmdir()


def _is_socket(name: str, folder: int) -> bool:
    if re.fullmatch(r"[0-9]+", name) is None:
        return False
    return stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
