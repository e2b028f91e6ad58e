import asyncio
import os
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.worker import frames
from headrace.worker.sockets import Sockets


def test_the_folder_is_private_and_goes_away(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    assert sockets.folder.stat().st_mode & 0o777 == 0o700
    sockets.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone_and_an_abandoned_one_removed(tmp_path: Path) -> None:
    living = Sockets(tmp_path)
    abandoned = tmp_path / "headrace-dead"
    abandoned.mkdir()
    (abandoned / "1").touch()
    being_made = tmp_path / "headrace-new"
    being_made.mkdir()
    (tmp_path / "headrace-file").touch()
    other = Sockets(tmp_path)
    assert living.folder.exists()
    assert being_made.exists()
    assert not abandoned.exists()
    other.close()
    living.close()


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
