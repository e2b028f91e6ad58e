"""What this process may use of the machine: instruction sets, cores, memory."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a number close to 2**63


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor's features by the kernel's names, and what this process may take of it."""

    model_name: str
    features: frozenset[str]
    num_cores: int  # cores in our affinity mask, within the cgroup's quota
    available_memory: int  # bytes, within the cgroup's limit

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 products are instructions here, not emulation."""
        return bool(self.features & {"amx_bf16", "avx512_bf16"})


def machine(root: Path = Path("/")) -> Machine:
    """Ask the kernel; `root` holds proc and sys."""
    cpuinfo = _read(root / "proc/cpuinfo")
    return Machine(
        model_name=_field(cpuinfo, "model name") or "unknown CPU",
        features=frozenset(_field(cpuinfo, "flags").split()),
        num_cores=_num_cores(root),
        available_memory=_available_memory(root),
    )


def available_memory(root: Path = Path("/")) -> int | None:
    """The same number as a `Machine` has, None where the kernel does not tell (macOS)."""
    return _available_memory(root) if _read(root / "proc/meminfo") else None


def mapped_bytes(pid: int, root: Path = Path("/")) -> int:
    """Files in the memory of a process: available to the kernel, and read by it all the time."""
    return int((_field(_read(root / f"proc/{pid}/status"), "RssFile") or "0 kB").split()[0]) * 1024


def _num_cores(root: Path) -> int:
    """Siblings of one core count once: they share the units that matrix products need."""
    topology = root / "sys/devices/system/cpu"
    cores = {
        _read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in os.sched_getaffinity(0)
    }
    return max(1, min(len(cores), math.ceil(_cpu_quota(root))))


def _cpu_quota(root: Path) -> float:
    """CPUs' worth of time that the tightest enclosing cgroup grants."""
    quotas = [
        int(quota) / int(period)
        for folder in _cgroup_folders(root, "cpu")
        for quota, period in [_quota_and_period(folder)]
        if quota.isdecimal() and period.isdecimal()
    ]
    return min(quotas, default=math.inf) if quotas else float(os.cpu_count() or 1)


def _quota_and_period(folder: Path) -> tuple[str, str]:
    if both := _read(folder / "cpu.max").split():
        return both[0], both[1]
    return _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")


def _available_memory(root: Path) -> int:
    free = int((_field(_read(root / "proc/meminfo"), "MemAvailable") or "0 kB").split()[0]) * 1024
    return max(0, min([free, *map(_cgroup_headroom, _cgroup_folders(root, "memory"))]))


def _cgroup_headroom(folder: Path) -> int:
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    if not limit.isdecimal() or int(limit) > _NO_LIMIT:
        return _NO_LIMIT
    return int(limit) - int(used or 0) + _reclaimable(folder)


def _reclaimable(folder: Path) -> int:
    """Cached files that nobody reads: they count as used, and go when memory is wanted."""
    stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Our cgroup's folder and those around it, for version 2 and for version 1's controller."""
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        inner = mount / path.lstrip("/")
        folders += [inner, *(up for up in inner.parents if up.is_relative_to(mount))]
    return folders


def _field(text: str, name: str) -> str:
    """The value of the first `name : value` line, empty where there is none."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    """A kernel file's text, empty where this kernel has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
