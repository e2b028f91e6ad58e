import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from harness.weights import Weights, fetch_gguf

from headrace.errors import ModelFileError


def tiny(path: Path, value: float = 1.0) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.full((4, 32), value, np.float32))
    writer.add_tensor("output_norm.weight", np.full(32, value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_matrices_take_the_wanted_type_and_keep_their_values(tmp_path: Path) -> None:
    made = Weights(tiny(tmp_path / "model.gguf"), tmp_path / "weights").gguf("q8_0")
    matrix, norm = gguf.GGUFReader(made).tensors
    assert matrix.tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32
    np.testing.assert_allclose(dequantize(matrix.data, matrix.tensor_type), 1.0, rtol=1e-3)


def test_two_models_never_share_a_form(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = Weights(tiny(tmp_path / "model.gguf"), tmp_path / "weights")
    second = Weights(tiny(tmp_path / "other" / "model.gguf"), tmp_path / "weights")
    assert first.gguf("f16") != second.gguf("f16")


def test_a_model_made_anew_gets_forms_of_its_own(tmp_path: Path) -> None:
    path, parent = tiny(tmp_path / "model.gguf"), tmp_path / "weights"
    before = Weights(path, parent).gguf("f32")
    tiny(path, value=2.0)
    os.utime(path, ns=(0, 0))
    after = Weights(path, parent).gguf("f32")
    assert gguf.GGUFReader(before).tensors[0].data.flat[0] == 1.0
    assert gguf.GGUFReader(after).tensors[0].data.flat[0] == 2.0


def test_a_folder_is_no_model_to_compare_systems_on(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="compared on a GGUF file"):
        fetch_gguf(str(tmp_path), tmp_path)
