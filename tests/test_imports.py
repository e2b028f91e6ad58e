import subprocess
import sys

from headrace.imports import without

SLOW = {"rich", "openvino.tools.ovc"}


def test_a_hidden_module_is_not_found_until_the_block_ends() -> None:
    code = """
from headrace.imports import without
with without("wave"):
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
    with without("sys"):
        assert sys.modules["sys"] is sys


def test_a_worker_starts_without_what_it_never_uses() -> None:
    code = "import headrace.worker.__main__, sys; from headrace.worker import main;"
    code += "main._import_loading(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert SLOW.isdisjoint(done.stdout.split())
