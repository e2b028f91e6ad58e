import asyncio
import os
import sys

from harness import stacks
from harness.processes import (
    MemoryPeak,
    cpu_seconds,
    find,
    rss,
    thread_cpu_seconds,
    tree,
    tree_cpu_seconds,
    tree_rss,
)

CHILD = "import sys; held = b'x' * 50_000_000; print('ready', flush=True); sys.stdin.read()"


async def child() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def test_a_tree_counts_what_its_children_hold() -> None:
    process = await child()
    assert process.pid in tree(os.getpid())
    assert rss(process.pid) > 50_000_000
    assert tree_rss(os.getpid()) >= rss(process.pid)
    assert tree_cpu_seconds(os.getpid()) >= cpu_seconds(process.pid) > 0
    assert find(os.getpid(), "held = b'x'") == process.pid
    await process.communicate(b"")


async def test_the_peak_stays_after_the_memory_is_gone() -> None:
    process = await child()
    peak = MemoryPeak(process.pid, interval=0.01)
    while not peak.bytes:  # noqa: ASYNC110 - it samples on a beat of its own
        await asyncio.sleep(0.01)
    await process.communicate(b"")
    await peak.close()
    assert peak.bytes > 50_000_000


def test_a_process_that_has_gone_counts_nothing() -> None:
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", ""])
    os.waitpid(pid, 0)
    assert (tree_rss(pid), tree_cpu_seconds(pid)) == (0, 0.0)


def test_the_main_thread_has_the_process_id() -> None:
    assert thread_cpu_seconds(os.getpid())[os.getpid()] > 0


def test_samples_go_to_the_innermost_module_of_ours() -> None:
    engine = "thread (7): headrace-engine;run (/lib/threading.py:1)"
    folded = (
        f"{engine};step (/src/headrace/engine/engine.py:3);run (/src/headrace/executors/x.py:9);"
        "infer (/lib/openvino.py:4) 80\n"
        f"{engine};step (/src/headrace/engine/engine.py:3);sort (/lib/heap.py:4) 15\n"
        f"{engine} 5\n"
        "thread (8): MainThread;loop (/src/headrace/worker/main.py:3) 100\n"
    )
    assert stacks.seconds_by_module(folded) == {
        "executors/x": 0.8,
        "engine/engine": 0.15,
        "elsewhere": 0.05,
    }
