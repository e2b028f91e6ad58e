"""Packed weights on disk: made once, then mapped, and never believed when they are wrong."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.batches import logits
from executors.conftest import NATIVE
from executors.tiny import tiny_model
from headrace.executors.native.loading import FOLDER
from headrace.executors.select import create_executor
from headrace.modelfiles.model import ModelFiles

pytestmark = pytest.mark.usefixtures("native_kernels")

PROMPT = list(range(1, 41))


def start(
    cache_dir: Path, files: ModelFiles | None = None, **settings: Any
) -> tuple[list[str], np.ndarray]:
    """Load, answer and close: the phases that were told, and the answer."""
    phases: list[str] = []
    executor = create_executor(
        files or tiny_model(),
        NATIVE.config(cache_dir=cache_dir, **settings),
        lambda phase, _share: phases.append(phase),
    )
    try:
        return list(dict.fromkeys(phases)), logits(executor, PROMPT, 0, [0, 1])
    finally:
        executor.close()


def packed_files(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / FOLDER).glob("*.weights"))


@pytest.mark.parametrize("precision", ["bf16", "w8a16", "w8a8"])
def test_a_second_start_maps_what_the_first_packed(tmp_path: Path, precision: str) -> None:
    first, packed = start(tmp_path, precision=precision)
    (file,) = packed_files(tmp_path)
    made = file.stat().st_ino
    second, mapped = start(tmp_path, precision=precision)
    assert (first, second) == (["packing", "warming"], ["reading", "warming"])
    np.testing.assert_array_equal(mapped, packed)
    assert packed_files(tmp_path) == [file]
    assert file.stat().st_ino == made


def truncate(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def corrupt(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size * 2 // 3)
        byte = opened.read(1)
        opened.seek(-1, 1)
        opened.write(bytes([byte[0] ^ 1]))


def replace_content(file: Path) -> None:
    file.write_bytes(b"something else altogether" * 100)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, corrupt, replace_content, empty])
def test_a_damaged_file_is_packed_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    _, sound = start(tmp_path)
    (file,) = packed_files(tmp_path)
    damage(file)
    phases, again = start(tmp_path)
    assert "packing" in phases
    np.testing.assert_array_equal(again, sound)
    assert start(tmp_path)[0] == ["reading", "warming"]


def test_another_models_file_under_this_models_name_is_packed_anew(tmp_path: Path) -> None:
    other = replace(tiny_model(), digest="another")
    _, sound = start(tmp_path / "mine")
    start(tmp_path / "other", other)
    (mine,), (theirs,) = packed_files(tmp_path / "mine"), packed_files(tmp_path / "other")
    assert mine.name != theirs.name
    mine.write_bytes(theirs.read_bytes())
    phases, again = start(tmp_path / "mine")
    assert "packing" in phases
    np.testing.assert_array_equal(again, sound)


def test_every_mode_level_and_content_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path)
    start(tmp_path, precision="w8a16")
    start(tmp_path, replace(tiny_model(), digest="retrained"))
    assert len(packed_files(tmp_path)) == 3
    monkeypatch.setenv("HEADRACE_ISA", "scalar")
    start(tmp_path)
    assert len(packed_files(tmp_path)) == 4


def test_a_change_that_the_digest_does_not_see_is_seen_by_the_files_time(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights")
    files = replace(tiny_model(), path=source)
    start(tmp_path, files)
    assert start(tmp_path, files)[0] == ["reading", "warming"]
    source.write_bytes(b"changed")
    assert "packing" in start(tmp_path, files)[0]


def test_a_checkpoint_of_many_files_is_one_cached_model(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(300):
        (folder / f"model-{number:05}-of-00300.safetensors").touch()
    files = replace(tiny_model(), path=folder)
    start(tmp_path, files)
    assert start(tmp_path, files)[0] == ["reading", "warming"]


def test_without_a_folder_weights_are_packed_into_memory(tmp_path: Path) -> None:
    executor = NATIVE.create(cache_dir=None)
    found = logits(executor, PROMPT, 0, [0, 1])
    executor.close()
    np.testing.assert_array_equal(found, start(tmp_path)[1])


PROGRAM = """
from pathlib import Path
from executors.batches import logits
from executors.conftest import NATIVE
executor = NATIVE.create(cache_dir=Path(sys.argv[1]))
print(logits(executor, list(range(1, 41)), 0, [0, 1]).tobytes().hex())
executor.close()
"""


def test_processes_that_start_at_once_share_one_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path}\n{PROGRAM}"]
    both = [
        subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] == start(tmp_path)[1].tobytes().hex() + "\n"
    assert len(packed_files(tmp_path)) == 1
    assert [p.suffix for p in (tmp_path / FOLDER).iterdir()].count(".lock") == 1
