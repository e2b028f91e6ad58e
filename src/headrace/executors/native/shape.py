"""A model's shape in the kernels' words, and its rotary tables."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.modelfiles.config import ModelConfig, Rope

Table = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines and sines, (num_positions, head_dim / 2)."""

_SAME = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "norm_eps",
    "attention_scale",
    "embedding_scale",
    "activation",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
    "post_norms",
)


def model_shape(config: ModelConfig, max_position: int) -> dict[str, Any]:
    """The arguments of the kernels' Model that follow from the model alone."""
    ropes = _ropes(config)
    shape: dict[str, Any] = {name: getattr(config, name) for name in _SAME}
    shape["max_position"] = max_position
    shape["windows"] = list(config.layer_windows)
    shape["ropes"] = [ropes.index(rope) for rope in config.layer_ropes]
    return shape


def rope_tables(config: ModelConfig, num_positions: int) -> list[Table]:
    """One table for each kind of layer, numbered as in the shape's `ropes`."""
    return [_table(rope, num_positions) for rope in _ropes(config)]


def _ropes(config: ModelConfig) -> list[Rope]:
    return list(dict.fromkeys(config.layer_ropes))


def _table(rope: Rope, num_positions: int) -> Table:
    # Angles are rounded to float32, as in the models' training; their cosines are not before that.
    inverse = np.array(rope.inverse_frequencies, np.float32)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * inverse
    wide = angles.astype(np.float64)
    factor = rope.attention_factor
    return (np.cos(wide) * factor).astype(np.float32), (np.sin(wide) * factor).astype(np.float32)
