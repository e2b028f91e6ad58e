import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ModelFileError
from headrace.modelfiles.gguf import open_gguf
from headrace.modelfiles.model import open_model
from modelfiles.tiny import write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path


def open_everything(path: Path) -> None:
    files = open_model(path)
    for name in files.weights.names():
        files.weights.float32(name)


def test_metadata_and_tensors_are_read(tiny: Path) -> None:
    file = open_gguf(tiny)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 2
    assert file.tensors["token_embd.weight"].shape == (300, 32)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.1, 0.3, 0.7, 0.999])
def test_a_truncated_file_says_where_it_ends(tiny: Path, tmp_path: Path, share: float) -> None:
    content = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match=r"cut\.gguf: (truncated|the file is empty)"):
        open_model(cut)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bytes_give_a_model_file_error_or_a_model(
    tiny: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(tiny.read_bytes())
    header = open_gguf(tiny).header_size
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header - 1))
        content[at] = data.draw(st.integers(0, 255))
    flipped = tmp_path / "flipped.gguf"
    flipped.write_bytes(content)
    try:
        open_everything(flipped)
    except ModelFileError as error:
        assert "flipped.gguf" in error.message  # noqa: PT017  # success is fine too


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04" * 10, "does not start with 'GGUF'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0), "claims a length of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture"),
    ],
)
def test_what_is_no_gguf_is_refused_in_one_line(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_an_unsupported_type_is_named_with_its_tensor(tiny: Path, tmp_path: Path) -> None:
    content = bytearray(tiny.read_bytes())
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 2 * 8
    content[at] = 16
    path = tmp_path / "iq.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"'blk.0.attn_q.weight' has the type IQ2_XXS; supp"):
        open_model(path)


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", metadata={})
    content = (tmp_path / "a.gguf").read_bytes().replace(b"llama", b"mamba")
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match="architecture 'mamba' is not supported; supported"):
        open_model(tmp_path / "a.gguf")
