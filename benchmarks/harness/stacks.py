"""Where a Python process spends its time, by `py-spy` from outside, folded by module of ours."""

import asyncio
import shutil
import sys
from collections import Counter
from pathlib import Path

RATE = 100  # samples a second
PACKAGE = "headrace/"
THREAD = "headrace-engine"  # the others mostly wait, which py-spy cannot always tell from work


async def record(pid: int, seconds: float, path: Path) -> dict[str, float] | None:
    """The engine's seconds by module; None where py-spy is not installed."""
    program = find()
    if program is None:
        return None
    process = await asyncio.create_subprocess_exec(
        *(program, "record", "--pid", str(pid), "--rate", str(RATE), "--threads"),
        *("--duration", str(max(1, round(seconds))), "--format", "raw", "--full-filenames"),
        # A sample that stops the process costs its event loop more than the tokens do.
        *("--output", str(path), "--nonblocking"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    if await process.wait() != 0:
        raise RuntimeError(f"py-spy could not read process {pid}; it may need more rights")
    return seconds_by_module(await asyncio.to_thread(path.read_text))


def find() -> str | None:
    """py-spy on the path, or where this Python's own commands are."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=Path(sys.executable).parent)


def seconds_by_module(folded: str) -> dict[str, float]:
    """The engine thread's seconds by the innermost module of ours, the largest first."""
    seconds: Counter[str] = Counter()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if THREAD in stack.partition(";")[0]:
            seconds[_module(stack.split(";"))] += int(count)
    return {module: count / RATE for module, count in seconds.most_common()}


def _module(stack: list[str]) -> str:
    for frame in reversed(stack):
        _, is_ours, place = frame.rpartition(PACKAGE)
        if is_ours:
            return place.partition(":")[0].removesuffix(".py")
    return "elsewhere"
