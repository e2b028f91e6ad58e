import os
import sys
import threading

import pytest

from headrace.executors.native.background import NICENESS, in_background


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def niceness_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(niceness()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority")
def test_work_in_the_background_yields_with_all_its_threads_and_nobody_else_does() -> None:
    before = niceness()
    assert in_background(niceness) == max(before, NICENESS)
    assert in_background(niceness_of_a_new_thread) == max(before, NICENESS)
    assert niceness() == niceness_of_a_new_thread() == before


def test_what_fails_in_the_background_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)
