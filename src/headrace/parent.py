"""Ties a process's life to the one that started it, also when that one is killed with -9.

`python -m headrace.parent PID MODULE ARGUMENT...` runs a module of Python so tied.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The kernel forgets a parent that died before it was asked, hence the look afterwards.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    exit_if_orphaned(parent_pid)


def exit_if_orphaned(parent_pid: int) -> None:
    """Leave at once, without clean-up, when another process has become our parent."""
    if os.getppid() != parent_pid:
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])  # noqa: S606 - no shell
