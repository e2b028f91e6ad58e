"""How much memory a worker of a model will hold, from headers alone. Reads no weights.

An estimate: sizes follow from shapes, and what lies beside them was measured (SmolLM2 135M and
Gemma 3 270M on AVX2, both executors). It says what is resident once every block of the KV cache was
used, and not what compiling or packing takes for a moment.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import Machine, machine
from headrace.executors.kv_budget import budgeted_blocks
from headrace.executors.native.entries import entries
from headrace.executors.native.precision import choose_precision as choose_native_precision
from headrace.executors.native.shape import model_shape
from headrace.executors.openvino.precision import KVPrecision, Precision
from headrace.executors.openvino.precision import choose_precision as choose_openvino_precision
from headrace.executors.select import choose_executor
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.model import open_weights
from headrace.modelfiles.weights import Weights

# Python, libraries, threads, activations of a step.
NATIVE_BYTES = 88 << 20
OPENVINO_BYTES = 140 << 20
VOCABULARY_BYTES = 300  # of a token in the tokenizer and in our tables beside it

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_ROPE_COPIES = 3  # of the native executor's tables: what made them stays with the allocator
_OPENVINO_BLOCK = 32  # tokens
_OPENVINO_KV_BYTES: dict[KVPrecision, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "u8": 1}
_U8_SCALES = 8  # bytes: a scale and a zero point, float32


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resident bytes of a worker.

    Packed native weights are a mapped file: one set in memory for all workers that serve it, whose
    pages the system counts as cache (`has_shared_weights`). They count here all the same: a step
    reads every one of them, so a worker that cannot keep them reads its disk for each token.
    """

    weight_bytes: int
    kv_bytes: int
    overhead_bytes: int
    has_shared_weights: bool

    @property
    def total(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.overhead_bytes

    @property
    def at_start(self) -> int:
        """Before the first request: a block of the KV cache takes memory once it is written."""
        return self.weight_bytes + self.overhead_bytes

    @property
    def shared_bytes(self) -> int:
        """Of the total, what further workers of the same version do not need again."""
        return self.weight_bytes if self.has_shared_weights else 0


def footprint(path: Path, config: ExecutorConfig) -> Footprint:
    """What a worker of the model at `path` will hold on this machine.

    ModelFileError for files that are no model, ConfigurationError for what does not fit it.
    """
    return footprint_of(*open_weights(path), config, machine())


def footprint_of(
    model: ModelConfig, weights: Weights, config: ExecutorConfig, here: Machine
) -> Footprint:
    """The same for a model that is open."""
    if choose_executor(config, model).name == "native":
        return _native(model, weights, config, here)
    return _openvino(model, weights, config, here)


def _native(
    model: ModelConfig, weights: Weights, config: ExecutorConfig, here: Machine
) -> Footprint:
    # Only if used: the kernels may be absent.
    from headrace.executors.native.kernels import BLOCK_SIZE, Model, instruction_set  # noqa: PLC0415
    from headrace.executors.native.loading import packed_size  # noqa: PLC0415

    precision = choose_native_precision(config)
    weight_bytes = packed_size(entries(weights, model, precision.mode))
    kernels: dict[str, Any] = {"cache": precision.cache, "isa": instruction_set()}
    bytes_per_block = Model.block_bytes(**model_shape(model, 1), **kernels)
    num_blocks = budgeted_blocks(
        model,
        config,
        block_size=BLOCK_SIZE,
        bytes_per_block=bytes_per_block,
        available=here.available_memory,
        weight_bytes=weight_bytes,
    )
    length = min(config.max_model_len or model.max_position_embeddings, num_blocks * BLOCK_SIZE)
    return Footprint(
        weight_bytes,
        num_blocks * bytes_per_block,
        NATIVE_BYTES + _vocabulary_bytes(model) + _ROPE_COPIES * _rope_bytes(model, length),
        has_shared_weights=True,
    )


def _openvino(
    model: ModelConfig, weights: Weights, config: ExecutorConfig, here: Machine
) -> Footprint:
    precision = choose_openvino_precision(config, here)
    bytes_per_block = _openvino_block_bytes(model, precision.kv_cache)
    num_blocks = budgeted_blocks(
        model,
        config,
        block_size=_OPENVINO_BLOCK,
        bytes_per_block=bytes_per_block,
        available=here.available_memory,
        weight_bytes=_num_elements(weights) * (1 if precision.weights == "int8" else 2),
    )
    return Footprint(
        _openvino_weight_bytes(model, weights, precision),
        num_blocks * bytes_per_block,
        OPENVINO_BYTES + _vocabulary_bytes(model),
        has_shared_weights=False,
    )


def _openvino_weight_bytes(model: ModelConfig, weights: Weights, precision: Precision) -> int:
    """The plugin's own copies; rows of the embedding are read out of a file that is paged out."""
    head = prod(weights.shape(_EMBEDDING if model.tied_embeddings else _HEAD))
    ends = {_EMBEDDING, _HEAD} & weights.names()
    layers = _num_elements(weights) - sum(prod(weights.shape(name)) for name in ends)
    if precision.weights == "int8":
        return 2 * layers + head  # as measured: the layers' matrices are there twice
    return (layers + head) * (2 if precision.compute == "bf16" else 4)


def _num_elements(weights: Weights) -> int:
    """Of all matrices."""
    shapes = map(weights.shape, weights.names())
    return sum(prod(shape) for shape in shapes if len(shape) > 1)


def _openvino_block_bytes(model: ModelConfig, precision: KVPrecision) -> int:
    """Of keys and values over all layers; 8-bit ones have scales, of channels and of tokens."""
    width, length = model.head_dim, _OPENVINO_BLOCK
    numbers = 2 * length * width * _OPENVINO_KV_BYTES[precision]
    scales = _U8_SCALES * (width + length) if precision == "u8" else 0
    return model.num_layers * model.num_kv_heads * (numbers + scales)


def _vocabulary_bytes(model: ModelConfig) -> int:
    return VOCABULARY_BYTES * model.vocab_size


def _rope_bytes(model: ModelConfig, length: int) -> int:
    """Cosines and sines of every position, float32, for each kind of layer."""
    return len(set(model.layer_ropes)) * 2 * (model.head_dim // 2) * 4 * length
