"""The folder of packed files: one maker at a time, bounded, and nothing swept that is in use."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from structlog.testing import capture_logs

from headrace.executors.native import packed
from headrace.executors.native.packed import PackedFile, packed_file

SIZE = 1000


def write(path: Path | None) -> str:
    if path is None:
        return "in memory"
    path.write_bytes(b"x" * SIZE)
    return "made"


def use(
    folder: Path,
    name: str,
    *,
    make: Callable[[Path | None], str] = write,
    valid: bool = True,
    max_bytes: int = 10 * SIZE,
) -> PackedFile[str]:
    file = packed_file(
        folder,
        name,
        SIZE,
        open_file=lambda path: f"opened {path.stem}" if valid else None,
        make=make,
        max_bytes=max_bytes,
    )
    _IN_USE.append(file)
    return file


_IN_USE: list[PackedFile[str]] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    while _IN_USE:
        _IN_USE.pop().close()


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.weights"))


def test_the_second_use_opens_what_the_first_made(tmp_path: Path) -> None:
    first, second = use(tmp_path / "new", "a"), use(tmp_path / "new", "a")
    assert (first.content, second.content) == ("made", "opened a")


def test_a_file_that_is_not_valid_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a.weights").write_bytes(b"torn")
    assert use(tmp_path, "a", valid=False).content == "made"
    assert (tmp_path / "a.weights").stat().st_size == SIZE


def test_the_one_unused_for_longest_is_swept(tmp_path: Path) -> None:
    for age, name in enumerate("abc"):
        use(tmp_path, name).close()
        os.utime(tmp_path / f"{name}.weights", (1000 + age, 1000 + age))
    use(tmp_path, "a").close()  # now the latest
    use(tmp_path, "d", max_bytes=3 * SIZE).close()
    assert names(tmp_path) == ["a", "c", "d"]
    assert not (tmp_path / "b.lock").exists()


def test_one_in_use_is_not_swept(tmp_path: Path) -> None:
    held = use(tmp_path, "a")
    use(tmp_path, "b").close()
    os.utime(tmp_path / "a.weights", (1000, 1000))
    use(tmp_path, "c", max_bytes=2 * SIZE).close()
    assert names(tmp_path) == ["a", "c"]
    held.close()
    use(tmp_path, "d", max_bytes=SIZE).close()
    assert names(tmp_path) == ["d"]


def test_one_in_use_by_another_process_is_not_swept(tmp_path: Path) -> None:
    use(tmp_path, "a").close()
    program = (
        "import sys; from pathlib import Path; from headrace.executors.native.packed import *\n"
        "held = packed_file(Path(sys.argv[1]), 'a', 1, open_file=lambda p: 1, make=lambda p: 2)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with capture_logs() as lines:
            assert use(tmp_path, "b", max_bytes=SIZE).content == "in memory"
        assert lines[0]["event"] == "weights.not_kept"
        other.kill()
    assert use(tmp_path, "b", max_bytes=SIZE).content == "made"
    assert names(tmp_path) == ["b"]


def test_what_is_larger_than_the_bound_stays_in_memory(tmp_path: Path) -> None:
    with capture_logs() as lines:
        assert use(tmp_path, "a", max_bytes=SIZE - 1).content == "in memory"
    assert "do not fit" in lines[0]["reason"]
    assert names(tmp_path) == []


def test_a_disk_without_room_leaves_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_SPARE", 1 << 60)
    with capture_logs() as lines:
        assert use(tmp_path, "a").content == "in memory"
    assert lines[0]["event"] == "weights.not_kept"


def test_what_cannot_fit_sweeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(tmp_path, "a").close()
    use(tmp_path, "b")
    with capture_logs() as lines:
        assert use(tmp_path, "c", max_bytes=SIZE - 1).content == "in memory"
        assert use(tmp_path, "d", max_bytes=2 * SIZE - 1).content == "in memory"
        monkeypatch.setattr(packed, "_SPARE", 1 << 60)
        assert use(tmp_path, "e").content == "in memory"
    assert [line["event"] for line in lines] == ["weights.not_kept"] * 3
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_that_cannot_be_made_leaves_it_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with capture_logs() as lines:
        assert use(tmp_path / "file" / "folder", "a").content == "in memory"
    assert lines[0]["reason"] == "Not a directory"


def test_a_making_that_fails_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def fail(_path: Path | None) -> str:
        raise ValueError("a torn checkpoint")

    with pytest.raises(ValueError, match="a torn checkpoint"):
        use(tmp_path, "a", make=fail)
    assert names(tmp_path) == []
    assert use(tmp_path, "a").content == "made"


def test_a_checkpoint_that_cannot_be_read_is_told_and_not_read_again(tmp_path: Path) -> None:
    tries = []

    def fail(path: Path | None) -> str:
        tries.append(path)
        raise OSError("the checkpoint's disk is broken")

    with pytest.raises(OSError, match="checkpoint's disk"):
        use(tmp_path, "a", make=fail)
    assert len(tries) == 1


def test_a_file_that_cannot_be_written_leaves_it_in_memory(tmp_path: Path) -> None:
    def full(path: Path | None) -> str:
        if path is not None:
            with packed.keeping():
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(path)

    with capture_logs() as lines:
        assert use(tmp_path, "a", make=full).content == "in memory"
    assert lines[0]["reason"] == "No space left on device"


def test_a_lock_that_another_holds_is_not_swept(tmp_path: Path) -> None:
    use(tmp_path, "a").close()
    with (tmp_path / "a.lock").open("rb") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        assert use(tmp_path, "b", max_bytes=SIZE).content == "in memory"
        assert (tmp_path / "a.lock").exists()
        assert names(tmp_path) == ["a"]


def test_who_waited_for_a_lock_that_was_swept_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []

    def swept_meanwhile(_file: BinaryIO, how: int) -> None:
        if not locked:
            (tmp_path / "a.lock").unlink()
        locked.append(how)

    monkeypatch.setattr(fcntl, "flock", swept_meanwhile)
    use(tmp_path, "a")
    assert locked[:2] == [fcntl.LOCK_EX, fcntl.LOCK_EX]
    assert (tmp_path / "a.lock").exists()


def test_of_two_at_once_one_makes_and_the_other_opens(tmp_path: Path) -> None:
    started, go = threading.Event(), threading.Event()
    contents = []

    def slowly(path: Path | None) -> str:
        started.set()
        assert go.wait(20)
        return write(path)

    def first() -> None:
        contents.append(use(tmp_path, "a", make=slowly).content)

    def second() -> None:
        contents.append(use(tmp_path, "a").content)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert started.wait(20)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(20)
    assert sorted(contents) == ["made", "opened a"]


def test_what_a_killed_process_was_writing_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, fresh = tmp_path / "a.weights.AbCdEf", tmp_path / "a.weights.GhIjKl"
    for path in (old, fresh):
        path.touch()
    os.utime(old, (1000, 1000))
    use(tmp_path, "b").close()
    assert not old.exists()
    assert fresh.exists()


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    theirs = [tmp_path / "notes.txt", tmp_path / "a.weights.backup-of-mine"]
    folders = [tmp_path / "folder", tmp_path / "x.weights", tmp_path / "a.weights.folder"]
    for path in theirs:
        path.touch()
    for path in folders:
        path.mkdir()
    for path in (*theirs, *folders):
        os.utime(path, (1000, 1000))
    assert use(tmp_path, "b", max_bytes=SIZE).content == "made"
    assert all(path.exists() for path in (*theirs, *folders))
