import gc
import importlib
import os
import subprocess
import sys

import pytest

from headrace.imports import fast_imports

SLOW = {"rich", "openvino.tools.ovc"}


def imported_by(code: str) -> set[str]:
    code += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_hidden_module_is_not_found_until_the_block_ends() -> None:
    code = """
from headrace.imports import fast_imports
with fast_imports(hidden=["wave"]):
    try:
        import wave
    except ImportError:
        print("hidden")
import wave
print(wave.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hidden", "wave"]


def test_a_module_that_is_there_already_stays() -> None:
    with fast_imports(hidden=["sys"]):
        assert sys.modules["sys"] is sys


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), fast_imports():
        importlib.import_module("headrace.nothing")
    assert gc.isenabled()


def test_a_worker_starts_without_what_it_never_uses() -> None:
    code = "from headrace.worker import __main__, main; main._import_loading()"
    assert SLOW.isdisjoint(imported_by(code))


def test_settings_leave_what_reads_the_environment_alone_where_nothing_is_set_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.upper().startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    code = "from headrace.settings import load_settings;"
    code += "load_settings(None, {'models': [{'source': 'smollm2'}]})"
    assert "pydantic_settings" not in imported_by(code)


def test_a_server_imports_its_routes_after_it_has_started_the_workers() -> None:
    assert {"fastapi", "uvicorn", "starlette"}.isdisjoint(imported_by("import headrace.api.server"))
