"""What a packed file consists of, for each precision and shape."""

from dataclasses import replace

import numpy as np
import pytest

from executors.tiny import CONFIG, RandomWeights
from headrace.errors import ConfigurationError
from headrace.executors.native.entries import Entry, entries
from headrace.executors.native.precision import Mode
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.weights import StoredTensor


class Stored(RandomWeights):
    """Weights that say of some tensors that they are stored in another format."""

    def __init__(self, config: ModelConfig, kinds: dict[str, str]) -> None:
        super().__init__(config)
        self._kinds = kinds

    def stored(self, name: str) -> StoredTensor:
        kind = next((kind for end, kind in self._kinds.items() if end in name), None)
        tensor = super().stored(name)
        return replace(tensor, kind=kind) if kind else tensor


def by_name(config: ModelConfig, mode: Mode, **kinds: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries(Stored(config, kinds), config, mode)}


def kinds_of(found: dict[str, Entry]) -> dict[str, str]:
    return {name: entry.kind for name, entry in found.items() if entry.role == "matrix"}


def test_a_tied_model_embeds_with_its_head() -> None:
    assert "embedding" not in by_name(CONFIG, "w8a16")
    untied = by_name(replace(CONFIG, tied_embeddings=False), "w8a16")
    assert (untied["embedding"].role, untied["head"].role) == ("table", "matrix")
    assert "embedding" in by_name(CONFIG, "w8a8"), "a rotated head holds the last norm"


def test_matrices_have_the_shapes_of_their_products() -> None:
    found = by_name(CONFIG, "bf16")
    shapes = {name: (found[name].n, found[name].k) for name in kinds_of(found)}
    assert {name: shape for name, shape in shapes.items() if "1." not in name} == {
        "layers.0.qkv": (128 + 64 + 64, 64),
        "layers.0.o": (64, 128),
        "layers.0.gate_up": (192, 64),
        "layers.0.down": (64, 96),
        "head": (80, 64),
    }
    assert set(kinds_of(found).values()) == {"bf16"}


def test_down_keeps_wide_operands_beside_int8_ones() -> None:
    kinds = kinds_of(by_name(CONFIG, "w8a8"))
    assert kinds.pop("layers.0.down") == kinds.pop("layers.1.down") == "i8"
    assert set(kinds.values()) == {"i8a8"}


def test_blocks_of_four_and_eight_bits_stay_and_the_rest_becomes_int8() -> None:
    found = by_name(
        CONFIG,
        "w4a16",
        q_proj="Q4_K",
        k_proj="Q4_0",
        v_proj="Q4_1",
        o_proj="Q8_0",
        gate_proj="Q4_K",
        up_proj="Q8_0",
        down_proj="Q6_K",
    )
    kinds = {name: kind for name, kind in kinds_of(found).items() if "1." not in name}
    assert kinds == {
        "layers.0.qkv": "q4",
        "layers.0.o": "q8",
        "layers.0.gate_up": "i8",  # one kind a matrix
        "layers.0.down": "i8",
        "head": "i8",
    }


def test_a_checkpoint_without_4_bit_blocks_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"matrices are F32, Q8_0: use 'w8a16'") as error:
        by_name(CONFIG, "w4a16", o_proj="Q8_0")
    assert error.value.param == "precision"


def test_every_norm_and_bias_has_its_entry() -> None:
    config = replace(
        CONFIG, post_norms=True, qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True
    )
    weights = RandomWeights(config)
    found = {entry.name: entry for entry in entries(weights, config, "bf16")}
    theirs = {
        "norm1": "input_layernorm.weight",
        "post1": "post_attention_layernorm.weight",
        "norm2": "pre_feedforward_layernorm.weight",
        "post2": "post_feedforward_layernorm.weight",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "o_bias": "self_attn.o_proj.bias",
        "down_bias": "mlp.down_proj.bias",
    }
    for ours, name in theirs.items():
        entry = found[f"layers.1.{ours}"]
        ((kind, data, rows),) = entry.read()
        expected = weights.float32(f"model.layers.1.{name}")
        assert (entry.role, entry.n, entry.k, kind, rows) == ("vector", 1, len(expected), "F32", 1)
        np.testing.assert_array_equal(data.view(np.float32), expected)


def test_without_post_norms_the_second_norm_is_before_the_mlp() -> None:
    weights = RandomWeights(CONFIG)
    found = {entry.name: entry for entry in entries(weights, CONFIG, "bf16")}
    ((_, data, _),) = found["layers.0.norm2"].read()
    expected = weights.float32("model.layers.0.post_attention_layernorm.weight")
    np.testing.assert_array_equal(data.view(np.float32), expected)


def test_biases_of_gate_and_up_lie_in_the_order_of_the_panels() -> None:
    config = replace(CONFIG, mlp_bias=True, intermediate_size=20)
    weights = RandomWeights(config)
    found = {entry.name: entry for entry in entries(weights, config, "bf16")}
    entry = found["layers.0.gate_up_bias"]
    ((_, data, _),) = entry.read()
    gate, up = (weights.float32(f"model.layers.0.mlp.{p}_proj.bias") for p in ("gate", "up"))
    rest = np.zeros(12, np.float32)
    expected = np.concatenate([gate[:16], up[:16], gate[16:], rest, up[16:], rest])
    assert entry.k == 64
    np.testing.assert_array_equal(data.view(np.float32), expected)
