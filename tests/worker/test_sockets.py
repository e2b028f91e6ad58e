import asyncio
import os
import socket
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.worker import frames
from headrace.worker.sockets import MARKER, PREFIX, Sockets


def test_the_folder_is_private_and_goes_away(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    assert sockets.folder.stat().st_mode & 0o777 == 0o700
    sockets.close()
    assert list(tmp_path.iterdir()) == []


def abandon(folder: Path, *others: str) -> Path:
    """Make what a killed server leaves behind, and perhaps files beside it."""
    folder.mkdir()
    (folder / MARKER).touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "1"))
    for name in others:
        (folder / name).touch()
    return folder


def test_a_folder_in_use_is_left_alone_and_an_abandoned_one_removed(tmp_path: Path) -> None:
    living = Sockets(tmp_path)
    abandoned = abandon(tmp_path / f"{PREFIX}dead")
    being_made = tmp_path / f"{PREFIX}new"
    being_made.mkdir()
    (tmp_path / f"{PREFIX}file").touch()
    other = Sockets(tmp_path)
    assert living.folder.exists()
    assert being_made.exists()
    assert not abandoned.exists()
    other.close()
    living.close()


def test_the_users_own_folders_are_never_touched(tmp_path: Path) -> None:
    for name in ("headrace-state", "headrace-src", f"{PREFIX}mine"):
        (tmp_path / name / "models").mkdir(parents=True)
        (tmp_path / name / "1").touch()
    before = sorted(tmp_path.rglob("*"))
    Sockets(tmp_path).close()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("other", ["notes.txt", "2"])  # a file named like a socket is none
def test_an_abandoned_folder_that_holds_anything_else_is_left(tmp_path: Path, other: str) -> None:
    folder = abandon(tmp_path / f"{PREFIX}dead", other)
    Sockets(tmp_path).close()
    assert sorted(path.name for path in folder.iterdir()) == sorted([MARKER, "1", other])


def test_closing_leaves_what_someone_else_put_into_the_folder(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    (sockets.folder / "notes.txt").touch()
    sockets.close()
    assert (sockets.folder / "notes.txt").exists()


def test_too_long_a_path_is_refused_with_a_sentence(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 100)
    base.mkdir()
    with pytest.raises(ConfigurationError, match="too long a path for sockets"):
        Sockets(base)
    assert list(base.iterdir()) == []


def test_a_long_tmpdir_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / ("x" * 100)
    base.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(base))
    sockets = Sockets()
    assert sockets.folder.parent == Path("/tmp")
    sockets.close()


async def test_a_closed_channel_takes_its_socket_file_along(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    received: list[frames.FromWorker] = []
    endpoint, channel = sockets.listen(receive=received.append, broken=lambda _: None)
    assert endpoint == f"ipc://{sockets.folder}/1"
    assert os.listdir(sockets.folder).count("1") == 1  # noqa: PTH208 - just after bind
    channel.send(frames.encode(frames.Drain()))
    channel.close()
    await asyncio.to_thread(sockets.close)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing else runs
