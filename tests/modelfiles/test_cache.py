from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.cache import cached, report_growth


def fill(folder: Path) -> None:
    with (folder.parent / "fills").open("a") as log:
        log.write("x")
    (folder / "model").write_bytes(b"whole")


def fetch_once(folder: Path) -> None:
    assert (cached(folder, fill) / "model").read_bytes() == b"whole"


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    fetch_once(tmp_path / "m")
    fetch_once(tmp_path / "m")
    assert (tmp_path / "fills").read_text() == "x"


def test_callers_at_the_same_time_fill_once(tmp_path: Path) -> None:
    # Each opens the lock file by itself, as processes do.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fetch_once, [tmp_path / "m"] * 4))
    assert (tmp_path / "fills").read_text() == "x"


def test_an_interrupted_fill_starts_anew(tmp_path: Path) -> None:
    partial = tmp_path / "m.partial-0123abcd"
    partial.mkdir()
    (partial / "model").write_bytes(b"who")
    (partial / "stray").write_bytes(b"")
    fetch_once(tmp_path / "m")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["model"]
    assert not partial.exists()


def test_each_fill_has_a_folder_of_its_own(tmp_path: Path) -> None:
    seen: list[Path] = []

    def fail(folder: Path) -> None:
        seen.append(folder)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            cached(tmp_path / "m", fail)
    assert seen[0] != seen[1]


def test_a_failed_fill_leaves_no_folder(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "model").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "m", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["m.lock"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelFileError, match="file/m: cannot be written"):
        cached(tmp_path / "file" / "m", fill)


def test_growth_is_reported_in_rising_shares(tmp_path: Path) -> None:
    seen: list[float] = []
    grown = Event()
    sizes = iter([10, 40, 20, 100])

    def total() -> float:
        if (size := next(sizes, None)) is not None:
            (tmp_path / "download").write_bytes(bytes(size))
        else:
            grown.set()
        return 100

    def work() -> str:
        assert grown.wait(30)
        return "result"

    assert report_growth(work, tmp_path, total, seen.append) == "result"
    assert seen == [0.1, 0.4, 1.0]
