"""The benchmarks are scripts beside the package: their folder joins the path, and this one."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "benchmarks")]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import write_vocabulary  # noqa: PLC0415 - it needs the path above

    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.gguf"
    write_vocabulary(path)
    return path


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled stub and load."""
    from harness.compiled import build, find_compiler  # noqa: PLC0415 - it needs the path above

    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("programs")
    for name in ("stub", "load"):
        build(name, folder)
    return folder
