"""What a tree of processes uses, read from /proc. Linux only, as the peers are."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

# A process may end between being listed and being read.
_GONE = (FileNotFoundError, ProcessLookupError)


def tree(pid: int) -> Iterator[int]:
    """The process and everything it started that still lives."""
    yield pid
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def rss(pid: int) -> int:
    """Resident bytes of one process, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def cpu_times(pid: int) -> tuple[float, float]:
    """Seconds that one process has spent so far in its own code and in the kernel."""
    # The command's name is in parentheses and may hold spaces: count fields from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def cpu_seconds(pid: int) -> float:
    return sum(cpu_times(pid))


def thread_cpu_seconds(pid: int) -> dict[int, float]:
    """Each thread's time on a processor so far, to the nanosecond; the main one's id is `pid`."""
    found: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(*_GONE):
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def find(pid: int, word: str) -> int | None:
    """The first process of the tree whose command line holds `word`."""
    for member in tree(pid):
        with suppress(*_GONE):
            if word in Path(f"/proc/{member}/cmdline").read_text():
                return member
    return None


def tree_rss(pid: int) -> int:
    total = 0
    for member in tree(pid):
        with suppress(*_GONE):
            total += rss(member)
    return total


def tree_cpu_seconds(pid: int) -> float:
    total = 0.0
    for member in tree(pid):
        with suppress(*_GONE):
            total += cpu_seconds(member)
    return total


class MemoryPeak:
    """Watches a process tree's resident bytes, a few times a second, until it is closed."""

    def __init__(self, pid: int, interval: float = 0.2) -> None:
        self.bytes = 0
        self._pid = pid
        self._interval = interval
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, tree_rss(self._pid))
            await asyncio.sleep(self._interval)
