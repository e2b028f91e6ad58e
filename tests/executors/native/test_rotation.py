"""The rotated model computes what the model computes."""

from dataclasses import replace

import numpy as np
import pytest

from executors.batches import logits
from executors.conftest import OPENVINO
from executors.tiny import CONFIG, RandomWeights, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.native.entries import entries
from headrace.executors.native.rotation import RotatedWeights, Rotation, unrotatable
from headrace.modelfiles.config import ModelConfig, Rope

PROMPT = list(range(3, 40))
ODD_ROPE = Rope(tuple(10000.0 ** -(np.arange(0, 20, 2) / 20)))
ODD = replace(
    CONFIG, hidden_size=72, intermediate_size=100, head_dim=20, layer_ropes=(ODD_ROPE,) * 2
)


@pytest.mark.parametrize("size", [1, 3, 8, 20, 64, 72, 576, 640])
def test_a_rotation_is_orthogonal_and_mixes_every_number(size: int) -> None:
    rotation = Rotation(size, np.random.default_rng(1))
    matrix = rotation.apply(np.eye(size, dtype=np.float32))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-5)
    assert np.abs(matrix).max() <= (size & -size) ** -0.5 + 1e-6
    x = np.random.default_rng(2).normal(size=(300, 2, size)).astype(np.float32)
    np.testing.assert_allclose(rotation.apply(x), x @ matrix, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, tied_embeddings=False),
        replace(CONFIG, qkv_bias=True, output_bias=True, mlp_bias=True),
        replace(CONFIG, qk_norm=True, embedding_scale=3.0, layer_windows=(8, 0)),
        replace(ODD, qkv_bias=True),
    ],
    ids=["tied", "untied", "biases", "norms in heads", "odd sizes"],
)
def test_the_rotated_model_computes_the_same(config: ModelConfig) -> None:
    weights = RandomWeights(config)
    turned = RotatedWeights(weights, config)
    executors = (
        OPENVINO.create(tiny_model(config, weights)),
        OPENVINO.create(tiny_model(replace(config, tied_embeddings=False), turned)),
    )
    ours, theirs = (logits(executor, PROMPT, 0, [1, 0]) for executor in executors)
    for executor in executors:
        executor.close()
    np.testing.assert_allclose(ours, theirs, atol=1e-2 * np.abs(ours).max())  # bf16 weights
    assert not np.allclose(
        turned.float32("model.layers.0.mlp.down_proj.weight"),
        weights.float32("model.layers.0.mlp.down_proj.weight"),
        atol=0.1,
    )


def test_what_stands_out_in_the_embedding_does_not_after_it() -> None:
    weights = RandomWeights(CONFIG)
    weights.float32("model.embed_tokens.weight")[:, 5] = 50
    turned = RotatedWeights(weights, CONFIG).float32("model.embed_tokens.weight")
    assert np.abs(turned).max() < 15


def test_norms_between_layers_cannot_be_rotated_and_the_way_out_is_named() -> None:
    config = replace(CONFIG, architecture="gemma3", post_norms=True)
    assert unrotatable(CONFIG) is None
    with pytest.raises(ConfigurationError, match=r"gemma3.*use 'w8a16'") as error:
        entries(RandomWeights(config), config, "w8a8")
    assert error.value.param == "precision"
