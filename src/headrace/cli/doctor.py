"""`headrace doctor`: what this machine has, and how models will run on it."""

import json
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Literal

import typer

from headrace import __version__
from headrace.executors.cpu import machine

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
            typer.echo(f"{_MARKS[finding.state]} {finding.name:<18} {finding.detail}")
    raise typer.Exit(0 if healthy else 1)


def _findings(port: int) -> Iterator[Finding]:
    yield Finding("headrace", "ok", f"{__version__} on Python {platform.python_version()}")
    packages = list(_packages())
    yield from _machine()
    yield from packages
    if all(package.state != "missing" for package in packages):
        yield from _plan()
        yield _cache()
    yield _port(port)


def _machine() -> Iterator[Finding]:
    here = machine()
    found = [flag for flag in _VECTOR_FLAGS if flag in here.features]
    yield Finding(
        "processor",
        "ok" if "avx2" in found else "note",
        f"{here.model_name}: {' '.join(found) or 'no AVX2, slow'}",
    )
    yield Finding(
        "cores", "ok", f"{here.num_cores} for computing, of {os.cpu_count()} logical processors"
    )
    yield Finding("memory", "ok", f"{here.available_memory / _GIB:.1f} GiB available")


def _plan() -> Iterator[Finding]:
    """What "auto" comes to on this machine."""
    from headrace.errors import ConfigurationError
    from headrace.executors.config import ExecutorConfig
    from headrace.executors.select import choose_executor

    try:
        choice = choose_executor(ExecutorConfig())
    except ConfigurationError as error:  # HEADRACE_ISA names what cannot run here
        yield Finding("native kernels", "missing", error.message)
        return
    if choice.name == "native":
        yield from _native_plan()
    else:
        yield Finding("native kernels", "note", choice.reason or "not chosen")
        yield _openvino_plan()


def _native_plan() -> Iterator[Finding]:
    from headrace.executors.config import ExecutorConfig
    from headrace.executors.native.kernels import instruction_set, levels
    from headrace.executors.native.precision import choose_precision

    level, best, choice = instruction_set(), levels(), choose_precision(ExecutorConfig())
    forced = "" if level == best[0] else " (HEADRACE_ISA)"
    yield Finding("native kernels", "ok", f"{level}{forced}, of {', '.join(best)}")
    yield Finding(
        "plan",
        "ok",
        f"native-{level}, {machine().num_cores} threads: weights {choice.mode}, KV cache"
        f" {choice.cache}",
    )


def _openvino_plan() -> Finding:
    from headrace.executors.config import ExecutorConfig
    from headrace.executors.openvino.precision import choose_precision

    here = machine()
    choice = choose_precision(ExecutorConfig(), here)
    return Finding(
        "plan",
        "ok",
        f"openvino, {here.num_cores} threads: weights {choice.weights}, products"
        f" {choice.compute}, KV cache {choice.kv_cache}",
    )


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
