"""A decoder small enough to compile in a moment, with random weights in memory."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from headrace.modelfiles.config import ModelConfig, Rope
from headrace.modelfiles.layout import expected_shapes
from headrace.modelfiles.model import ModelFiles
from headrace.modelfiles.weights import StoredTensor, Weights

NUM_LAYERS = 2
ROPE = Rope(tuple(10000.0 ** -(np.arange(0, 32, 2) / 32)))
CONFIG = ModelConfig(
    architecture="llama",
    num_layers=NUM_LAYERS,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=96,
    vocab_size=80,
    max_position_embeddings=256,
    norm_eps=1e-5,
    attention_scale=32**-0.5,
    tied_embeddings=True,
    layer_windows=(0,) * NUM_LAYERS,
    layer_ropes=(ROPE,) * NUM_LAYERS,
)


class RandomWeights:
    """Normal weights of the shapes that a config asks for, the same for the same seed."""

    def __init__(self, config: ModelConfig, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self._tensors = {
            name: rng.normal(0, 0.2, shape).astype(np.float32)
            for name, shape in expected_shapes(config).items()
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def stored(self, name: str) -> StoredTensor:
        tensor = self._tensors[name]
        return StoredTensor("F32", tensor.shape, tensor.reshape(-1).view(np.uint8))

    def float32(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name]

    def bfloat16(self, name: str) -> NDArray[np.uint16]:
        bits = self._tensors[name].view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tiny_model(config: ModelConfig = CONFIG, weights: Weights | None = None) -> ModelFiles:
    return ModelFiles(
        path=Path("tiny"),
        config=config,
        weights=weights or RandomWeights(config),
        tokenizer=Tokenizer(WordLevel({}, unk_token="?")),
        bos_token=None,
        eos_token=None,
        chat_template=None,
        digest="tiny",
    )
