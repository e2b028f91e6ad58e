"""What the kernel says of the machine, read from small made-up trees."""

import mmap
import os
from pathlib import Path

import pytest

from headrace.executors.cpu import Machine, machine, mapped_bytes

CPUINFO = "processor : 0\nmodel name : Test CPU\nflags : fpu avx2 fma\n\nprocessor : 1\n"
GIB = 1 << 30


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight processors, two on each core, 4 GiB available, no cgroup."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    write(tmp_path, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {4 * GIB // 1024} kB\n")
    for cpu in range(8):
        siblings = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, siblings, f"{cpu % 4},{cpu % 4 + 4}\n")
    return tmp_path


def test_siblings_of_a_core_count_once(root: Path) -> None:
    assert machine(root).num_cores == 4


def test_only_processors_in_the_affinity_mask_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 5})
    assert machine(root).num_cores == 1


def test_a_quota_of_the_enclosing_cgroup_limits_cores(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/pod/box\n")
    write(root, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    write(root, "sys/fs/cgroup/pod/box/cpu.max", "max 100000\n")
    assert machine(root).num_cores == 2


def test_a_quota_of_cgroup_version_1_limits_cores(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:cpu,cpuacct:/box\n2:memory:/box\n")
    write(root, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n")
    write(root, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine(root).num_cores == 3


def test_memory_is_what_the_cgroup_has_left(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/box\n")
    write(root, "sys/fs/cgroup/box/memory.max", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/box/memory.current", f"{GIB}\n")
    assert machine(root).available_memory == 2 * GIB


@pytest.mark.parametrize(
    ("cgroup", "limit", "used", "stat"),
    [
        ("0::/box", "box/memory.max", "box/memory.current", "anon 9\ninactive_file {}\n"),
        (
            "2:memory:/box",
            "memory/box/memory.limit_in_bytes",
            "memory/box/memory.usage_in_bytes",
            "inactive_file 9\ntotal_inactive_file {}\n",
        ),
    ],
)
def test_cached_files_leave_memory_available(
    root: Path, cgroup: str, limit: str, used: str, stat: str
) -> None:
    write(root, "proc/self/cgroup", f"{cgroup}\n")
    write(root, f"sys/fs/cgroup/{limit}", f"{3 * GIB}\n")
    write(root, f"sys/fs/cgroup/{used}", f"{3 * GIB}\n")
    stat_file = Path("sys/fs/cgroup", limit).with_name("memory.stat")
    write(root, str(stat_file), stat.format(2 * GIB))
    assert machine(root).available_memory == 2 * GIB


def test_memory_without_a_cgroup_is_what_the_system_has(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/box\n")
    write(root, "sys/fs/cgroup/box/memory.max", "max\n")
    assert machine(root).available_memory == 4 * GIB


def test_features_and_name_are_the_kernels(root: Path) -> None:
    here = machine(root)
    assert here.model_name == "Test CPU"
    assert here.features == {"fpu", "avx2", "fma"}


@pytest.mark.parametrize(
    ("flags", "has"),
    [({"avx2"}, False), ({"avx512f", "avx512_bf16"}, True), ({"amx_bf16"}, True)],
)
def test_bf16_needs_instructions_for_it(flags: set[str], *, has: bool) -> None:
    assert Machine("x", frozenset(flags), 1, 1).has_bf16 is has


def test_this_machine_answers() -> None:
    here = machine()
    assert here.num_cores >= 1
    assert here.available_memory > 0
    assert here.features


def test_files_in_the_memory_of_a_process_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 << 20))
    before = mapped_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not any(mapped[:: mmap.PAGESIZE])
        assert mapped_bytes(os.getpid()) - before >= 60 << 20
    assert mapped_bytes(1 << 30) == 0
