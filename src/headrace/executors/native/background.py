"""Work that takes every core, done so that whoever answers requests meanwhile hardly feels it."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10  # a tenth of the time of a thread that competes


def in_background(work: Callable[[], T]) -> T:
    """Do it in a thread that yields to others, wait, and return what it returned or raise.

    A thread of its own, because on Linux each has a priority, which the threads that it starts
    inherit, and may not raise it again. Elsewhere the priority is left as it is.
    """
    with ThreadPoolExecutor(1, "headrace-background", _yield_to_others) as thread:
        return thread.submit(work).result()


def _yield_to_others() -> None:
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
