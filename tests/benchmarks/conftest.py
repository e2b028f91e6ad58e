"""The benchmarks are scripts beside the package: their folder joins the path, and this one."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import write_vocabulary  # noqa: PLC0415 - it needs the path above

    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.gguf"
    write_vocabulary(path)
    return path
