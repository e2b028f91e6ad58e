"""The executors that one suite holds to one behaviour."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from executors.tiny import tiny_model
from headrace.executors.config import ExecutorConfig
from headrace.executors.executor import Executor
from headrace.executors.select import create_executor
from headrace.modelfiles.model import ModelFiles

Create = Callable[..., Executor]


@dataclass(frozen=True, slots=True)
class Kind:
    """One executor at its most precise, and how far its logits may be from exact ones."""

    name: Any
    precision: Any
    kv_cache_precision: Any
    error: float  # root mean square, relative

    def config(self, **settings: Any) -> ExecutorConfig:
        own = {
            "executor": self.name,
            "precision": self.precision,
            "kv_cache_precision": self.kv_cache_precision,
            "num_threads": 1,
        }
        return ExecutorConfig(**{**own, **settings})

    def create(self, files: ModelFiles | None = None, **settings: Any) -> Executor:
        return create_executor(
            files or tiny_model(), self.config(**settings), lambda _phase, _share: None
        )


OPENVINO = Kind("openvino", "fp32", "fp32", 1e-4)
NATIVE = Kind("native", "bf16", "bf16", 0.02)


def require_native_kernels() -> None:
    """Where they could have been built they must be there: a skip would hide that they broke."""
    try:
        import headrace_native  # noqa: F401, PLC0415 - whether it can be imported is the question
    except ImportError as error:
        buildable = any(map(shutil.which, ("c++", "g++", "clang++")))
        if not buildable and not os.environ.get("CI"):
            pytest.skip("needs the native kernels, and there is no C++ compiler to build them")
        pytest.fail(f"the native kernels are not built, `make test` does it: {error}")


@pytest.fixture(scope="session")
def native_kernels() -> None:
    require_native_kernels()


@pytest.fixture(params=[OPENVINO, NATIVE], ids=lambda kind: kind.name, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each executor in turn."""
    chosen: Kind = request.param
    if chosen is NATIVE:
        require_native_kernels()
    return chosen


@pytest.fixture(scope="module")
def executor(kind: Kind) -> Iterator[Executor]:
    """One that the tests of a file share."""
    executor = kind.create()
    yield executor
    executor.close()


@pytest.fixture
def create(kind: Kind) -> Iterator[Create]:
    """Make executors of the kind; closed at the test's end."""
    made: list[Executor] = []

    def make(files: ModelFiles | None = None, **settings: Any) -> Executor:
        made.append(kind.create(files, **settings))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
