from pathlib import Path

import gguf
import numpy as np
import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.model import open_model
from headrace.modelfiles.quantization import FORMATS
from modelfiles.tiny import write_folder, write_gguf

QUERY = "model.layers.1.self_attn.q_proj.weight"


def test_a_folder_opens_with_everything_in_it(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    files = open_model(tmp_path)
    assert files.weights.names() == set(tensors)
    assert files.weights.shape(QUERY) == (32, 32)
    assert (files.bos_token, files.eos_token) == ("<|start|>", "<|end|>")
    assert files.config.eos_token_ids == (1,)
    assert files.chat_template is not None
    assert files.tokenizer.encode("abc").ids == [files.tokenizer.token_to_id("abc")]


def test_a_gguf_file_gives_the_same_weights_in_our_order(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf")
    weights = open_model(tmp_path / "tiny.gguf").weights
    assert weights.names() == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(weights.float32(name), values), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_stored_blocks_are_reordered_whole(tmp_path: Path, kind: str) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf", kinds={"blk.1.attn_q.weight": kind})
    stored = open_model(tmp_path / "tiny.gguf").weights.stored(QUERY)
    expected = gguf.quants.quantize(tensors[QUERY], gguf.GGMLQuantizationType[kind])
    assert (stored.kind, stored.shape) == (kind, (32, 32))
    assert stored.data.size == 32 * 32 // FORMATS[kind].block_length * FORMATS[kind].block_bytes
    assert np.array_equal(stored.data, expected.reshape(-1).view(np.uint8))


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    tensors = write_folder(tmp_path / "b")
    same = open_model(tmp_path / "a").digest
    assert open_model(tmp_path / "b").digest == same
    content = bytearray((tmp_path / "b" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "b" / "model.safetensors").write_bytes(content)
    assert open_model(tmp_path / "b").digest != same
    assert tensors


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gone.gguf", "no such file or folder"),
        ("model.bin", "not a model; expected a .gguf file or a folder"),
        ("empty", "holds no config.json"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=expected):
        open_model(tmp_path / name)


def test_a_folder_without_tokenizer_says_what_is_expected(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"holds no tokenizer\.json"):
        open_model(tmp_path)


def test_an_unknown_tensor_is_a_model_file_error(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.raises(ModelFileError, match="no tensor 'nothing'"):
        open_model(tmp_path).weights.float32("nothing")
