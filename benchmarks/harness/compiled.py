"""Builds the compiled programs of the benchmarks, when their source is newer than they are."""

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SHARED = "net"  # the folder of what they include besides their own
FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra")


class MissingCompilerError(Exception):
    """There is no C++ compiler; the message says what would be one."""


def build(name: str, out: Path) -> Path:
    """The program of `benchmarks/NAME/NAME.cpp`, in the folder `out`."""
    program = out / name
    changed = max(path.stat().st_mtime for path in _sources(name))
    if not program.exists() or program.stat().st_mtime < changed:
        out.mkdir(parents=True, exist_ok=True)
        _compile(name, program)
    return program


def find_compiler() -> str | None:
    found = (shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++"))
    return next(filter(None, found), None)


def _compile(name: str, program: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise MissingCompilerError("a C++20 compiler is needed (Debian and Ubuntu: g++)")
    unfinished = program.with_suffix(f".{os.getpid()}")  # another run may build it too
    source = HERE / name / f"{name}.cpp"
    command = [compiler, *FLAGS, f"-I{HERE / SHARED}", str(source), "-o", str(unfinished)]
    subprocess.run(command, check=True)
    unfinished.replace(program)


def _sources(name: str) -> list[Path]:
    return [path for folder in (name, SHARED) for path in (HERE / folder).iterdir()]
