import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ModelFileError
from headrace.modelfiles.model import open_model
from headrace.modelfiles.safetensors import SafetensorsFile, open_folder
from modelfiles.tiny import CONFIG, write_folder, write_raw_safetensors, write_safetensors


def entry(start: int, end: int, shape: list[int], kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_safetensors(tmp_path / "x.safetensors", {"a": values})
    tensor = SafetensorsFile(tmp_path / "x.safetensors").tensors()["a"]
    assert (tensor.kind, tensor.shape) == ("F32", (2, 3))
    assert np.array_equal(tensor.data.view(np.float32).reshape(2, 3), values)
    assert not tensor.data.flags.owndata


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"a": entry(0, 16, [2, 2]), "b": entry(8, 16, [2])}, "'a' and 'b' overlap"),
        ({"a": entry(0, 12, [2, 2])}, "has 12 bytes; expected 16"),
        ({"a": entry(0, 64, [4, 4])}, "truncated: tensor 'a' ends at byte 64"),
        ({"a": entry(8, 0, [2])}, "no valid dtype, shape and data_offsets"),
        ({"a": entry(0, 8, [-2])}, "no valid dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32"}}, "no valid dtype, shape and data_offsets"),
        ({"a": 3}, "no valid dtype, shape and data_offsets"),
    ],
)
def test_a_header_that_lies_is_refused_with_the_tensor(
    tmp_path: Path, header: dict[str, Any], expected: str
) -> None:
    write_raw_safetensors(tmp_path / "x.safetensors", header, bytes(16))
    with pytest.raises(ModelFileError, match=r"x\.safetensors: ") as caught:
        SafetensorsFile(tmp_path / "x.safetensors")
    assert expected in caught.value.message


def test_a_sharded_checkpoint_is_read_through_its_index(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    names = sorted(tensors)
    shards = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for shard, held in shards.items():
        write_safetensors(tmp_path / shard, {name: tensors[name] for name in held})
    (tmp_path / "model.safetensors").unlink()
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    weights = open_model(tmp_path).weights
    assert all(np.array_equal(weights.float32(name), tensors[name]) for name in names)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b"])
def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelFileError, match="expected one in its folder"):
        open_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"gone\.safetensors: cannot be read"):
        open_folder(tmp_path)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_give_a_model_file_error_or_a_model(
    tmp_path: Path, data: st.DataObject
) -> None:
    write_folder(tmp_path)
    path = tmp_path / data.draw(
        st.sampled_from(["model.safetensors", "config.json", "tokenizer.json"])
    )
    content = bytearray(path.read_bytes())
    reach = min(len(content), 4000)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, reach - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), reach, reach // 2]))])
    try:
        files = open_model(tmp_path)
        for name in files.weights.names():
            files.weights.bfloat16(name)
    except ModelFileError as error:
        assert str(tmp_path) in error.message  # noqa: PT017  # success is fine too


def test_a_missing_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"up_proj.weight' is missing; expected shape"):
        open_model(tmp_path)


def test_a_tensor_of_another_shape_says_both_shapes(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 48}))
    assert tensors
    with pytest.raises(ModelFileError, match=r"has shape \[64, 32\]; the model's config expects"):
        open_model(tmp_path)


def test_an_unsupported_number_format_is_named(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = entry(at, at + values.size, list(values.shape), "F8_E4M3")
        at += values.size
    write_raw_safetensors(tmp_path / "model.safetensors", header, bytes(at))
    with pytest.raises(ModelFileError, match=r"'model\.embed_tokens\.weight' has the type F8_E4M3"):
        open_model(tmp_path)
