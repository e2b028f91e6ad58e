"""`headrace doctor`: what this machine has, and how models will run on it."""

import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

_VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
_MARKS = {"ok": "+", "note": "-", "missing": "!"}
_GIB = 1 << 30
_DEVELOPMENT = ("dev", "reference")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra == ['"]([^'"]+)""")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact; `missing` means that serving needs it and it is not there."""

    name: str
    state: Literal["ok", "note", "missing"]
    detail: str


def doctor(
    *,
    port: Annotated[int, typer.Option(help="The port to look at.")] = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine has and can run.

    The exit code is 1 when something that serving needs is missing.
    """
    findings = list(_findings(port))
    healthy = all(finding.state != "missing" for finding in findings)
    if as_json:
        facts = {"healthy": healthy, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.state]} {finding.name:<12} {finding.detail}")
    raise typer.Exit(0 if healthy else 1)


def _findings(port: int) -> Iterator[Finding]:
    yield Finding("headrace", "ok", f"{metadata.version('headrace')} on Python {_python()}")
    yield _processor(Path("/proc/cpuinfo"))
    yield _cores()
    yield _memory()
    yield from _packages()
    yield _cache()
    yield _port(port)


def _python() -> str:
    return ".".join(str(part) for part in sys.version_info[:3])


def _processor(cpuinfo: Path) -> Finding:
    facts = _cpu_facts(cpuinfo)
    found = [flag for flag in _VECTOR_FLAGS if flag in facts.get("flags", "").split()]
    name = facts.get("model name", "unknown processor")
    state: Literal["ok", "note"] = "ok" if "avx2" in found else "note"
    return Finding("processor", state, f"{name}: {', '.join(found) or 'no AVX2, slow'}")


def _cpu_facts(cpuinfo: Path) -> dict[str, str]:
    """The first processor's lines; empty where the system has no such file."""
    if not cpuinfo.exists():
        return {}
    first, _, _ = cpuinfo.read_text(encoding="utf-8").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cores() -> Finding:
    usable, quota = len(os.sched_getaffinity(0)), _cpu_quota(Path("/sys/fs/cgroup/cpu.max"))
    limit = f", the container may use {quota:g} of them" if quota is not None else ""
    return Finding("cores", "ok", f"{usable} of {os.cpu_count()} usable{limit}")


def _cpu_quota(cpu_max: Path) -> float | None:
    """Cores' worth of time that a control group grants; None means all of them."""
    if not cpu_max.exists():
        return None
    quota, period = cpu_max.read_text(encoding="utf-8").split()
    return None if quota == "max" else int(quota) / int(period)


def _memory() -> Finding:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (page * os.sysconf(name) for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    limit = _memory_limit(Path("/sys/fs/cgroup/memory.max"))
    note = f", the container may use {limit / _GIB:.1f} GiB" if limit is not None else ""
    return Finding("memory", "ok", f"{total / _GIB:.1f} GiB, {free / _GIB:.1f} GiB unused{note}")


def _memory_limit(memory_max: Path) -> int | None:
    if not memory_max.exists():
        return None
    limit = memory_max.read_text(encoding="utf-8").strip()
    return None if limit == "max" else int(limit)


def _packages() -> Iterator[Finding]:
    """What the base install needs, then the extras that a user may want."""
    for name, extra in _requirements(metadata.requires("headrace") or []):
        if extra in _DEVELOPMENT:
            continue
        version = _installed(name)
        if version is not None:
            yield Finding(name, "ok", version)
        elif extra is None:
            yield Finding(name, "missing", "run `pip install --force-reinstall headrace`")
        else:
            yield Finding(name, "note", f"optional: run `pip install 'headrace[{extra}]'`")


def _requirements(lines: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Package names with the extra that asks for them, from a distribution's metadata."""
    for line in lines:
        requirement = _REQUIREMENT.match(line)
        assert requirement is not None, line
        extra = _EXTRA.search(line)
        yield requirement[0], extra[1] if extra else None


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cache() -> Finding:
    from headrace.settings import default_state_dir

    folder = default_state_dir()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    return Finding("cache", "ok", f"{folder}: {len(files)} files, {size / _GIB:.2f} GiB")


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        # as the server does it: a port in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding("port", "note", f"{port}: {error.strerror}; use --port")
    return Finding("port", "ok", f"{port} is free")
