"""What a packed file of a model consists of, and which tensors go into each entry of it.

Knows neither the kernels nor how a number is packed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigurationError
from headrace.executors.native.precision import Mode
from headrace.executors.native.rotation import RotatedWeights, unrotatable
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.weights import StoredTensor, Weights

FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})
EIGHT_BITS = frozenset({"Q8_0"})
_GLU_ROWS = 16  # gate and up lie in turns of so many in a panel

Part = tuple[str, NDArray[np.uint8], int]  # format, bytes, rows
Read = Callable[[], list[Part]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One matrix, vector or table; `read` brings its rows, one part after another."""

    name: str
    role: str  # matrix, vector or table
    kind: str  # of a matrix: bf16, i8, i8a8, q8 or q4
    n: int
    k: int
    read: Read
    interleaved: bool = False

    @property
    def num_numbers(self) -> int:
        return self.n * self.k


def entries(weights: Weights, config: ModelConfig, mode: Mode) -> list[Entry]:
    """Every entry in the order of a step; ConfigurationError when the mode does not fit."""
    if mode == "w8a8":
        if (reason := unrotatable(config)) is not None:
            raise ConfigurationError(reason, param="precision")
        return list(_Decoder(RotatedWeights(weights, config), config, mode, rotated=True).entries())
    if mode == "w4a16":
        _require_four_bits(weights)
    return list(_Decoder(weights, config, mode, rotated=False).entries())


class _Decoder:
    """Walks through one decoder's tensors."""

    def __init__(self, weights: Weights, config: ModelConfig, mode: Mode, *, rotated: bool) -> None:
        self._weights = weights
        self._config = config
        self._mode = mode
        self._rotated = rotated

    def entries(self) -> Iterator[Entry]:
        config = self._config
        # A rotated head holds the last norm's weights as well, which the embedding does not.
        shared = config.tied_embeddings and not self._rotated
        if not shared:
            yield self._table("embedding", "model.embed_tokens.weight")
        for index in range(config.num_layers):
            yield from self._layer(f"layers.{index}", f"model.layers.{index}")
        yield self._vector("norm", "model.norm.weight")
        tied = config.tied_embeddings and shared
        yield self._matrix("head", "model.embed_tokens.weight" if tied else "lm_head.weight")

    def _layer(self, ours: str, theirs: str) -> Iterator[Entry]:
        config, attention, mlp = self._config, f"{theirs}.self_attn", f"{theirs}.mlp"
        yield self._vector(f"{ours}.norm1", f"{theirs}.input_layernorm.weight")
        yield self._matrix(f"{ours}.qkv", *(f"{attention}.{part}_proj.weight" for part in "qkv"))
        if config.qkv_bias:
            biases = (f"{attention}.{part}_proj.bias" for part in "qkv")
            yield self._vector(f"{ours}.qkv_bias", *biases)
        if config.qk_norm:
            yield self._vector(f"{ours}.q_norm", f"{attention}.q_norm.weight")
            yield self._vector(f"{ours}.k_norm", f"{attention}.k_norm.weight")
        yield self._matrix(f"{ours}.o", f"{attention}.o_proj.weight")
        if config.output_bias:
            yield self._vector(f"{ours}.o_bias", f"{attention}.o_proj.bias")
        before = "post_attention_layernorm"
        if config.post_norms:
            before = "pre_feedforward_layernorm"
            yield self._vector(f"{ours}.post1", f"{theirs}.post_attention_layernorm.weight")
            yield self._vector(f"{ours}.post2", f"{theirs}.post_feedforward_layernorm.weight")
        yield self._vector(f"{ours}.norm2", f"{theirs}.{before}.weight")
        yield from self._mlp(ours, mlp)

    def _mlp(self, ours: str, theirs: str) -> Iterator[Entry]:
        gate, up = f"{theirs}.gate_proj", f"{theirs}.up_proj"
        yield self._matrix(f"{ours}.gate_up", f"{gate}.weight", f"{up}.weight", interleaved=True)
        yield self._matrix(f"{ours}.down", f"{theirs}.down_proj.weight")
        if self._config.mlp_bias:
            yield self._interleaved_vector(f"{ours}.gate_up_bias", f"{gate}.bias", f"{up}.bias")
            yield self._vector(f"{ours}.down_bias", f"{theirs}.down_proj.bias")

    def _matrix(self, ours: str, *names: str, interleaved: bool = False) -> Entry:
        shapes = [self._weights.shape(name) for name in names]
        return Entry(
            ours,
            "matrix",
            self._kind(ours, names),
            sum(rows for rows, _ in shapes),
            shapes[0][1],
            self._stored(names),
            interleaved,
        )

    def _kind(self, ours: str, names: tuple[str, ...]) -> str:
        if self._mode == "bf16":
            return "bf16"
        if self._mode == "w8a8":
            # What goes into `down` cannot be rotated, and its outliers need 16 bits.
            return "i8" if ours.endswith(".down") else "i8a8"
        if self._mode == "w4a16":
            formats = {self._weights.stored(name).kind for name in names}
            if formats <= FOUR_BITS:
                return "q4"
            if formats <= EIGHT_BITS:
                return "q8"
        return "i8"

    def _table(self, ours: str, name: str) -> Entry:
        rows, k = self._weights.shape(name)
        return Entry(ours, "table", "", rows, k, self._stored((name,)))

    def _stored(self, names: tuple[str, ...]) -> Read:
        def read() -> list[Part]:
            tensors = [self._weights.stored(name) for name in names]
            return [(tensor.kind, tensor.data, tensor.shape[0]) for tensor in tensors]

        return read

    def _vector(self, ours: str, *names: str) -> Entry:
        size = sum(self._weights.shape(name)[0] for name in names)
        return _vector(
            ours, size, lambda: np.concatenate([self._weights.float32(name) for name in names])
        )

    def _interleaved_vector(self, ours: str, gate: str, up: str) -> Entry:
        """In the order of the panels; a last, shorter turn is filled with zeros."""
        groups = -(-self._config.intermediate_size // _GLU_ROWS)

        def read() -> NDArray[np.float32]:
            padded = np.zeros((2, groups * _GLU_ROWS), np.float32)
            for row, name in zip(padded, (gate, up), strict=True):
                row[: self._config.intermediate_size] = self._weights.float32(name)
            return padded.reshape(2, groups, _GLU_ROWS).swapaxes(0, 1).reshape(-1)

        return _vector(ours, 2 * groups * _GLU_ROWS, read)


def _vector(name: str, size: int, values: Callable[[], NDArray[np.float32]]) -> Entry:
    def read() -> list[Part]:
        return [("F32", np.ascontiguousarray(values(), np.float32).view(np.uint8), 1)]

    return Entry(name, "vector", "", 1, size, read)


def _require_four_bits(weights: Weights) -> None:
    kinds = [_matrix_kind(weights.stored(name)) for name in sorted(weights.names())]
    found = sorted({kind for kind in kinds if kind})
    if FOUR_BITS.isdisjoint(found):
        raise ConfigurationError(
            f"precision 'w4a16' keeps the 4-bit blocks of a file ({', '.join(sorted(FOUR_BITS))}),"
            f" but this model's matrices are {', '.join(found)}: use 'w8a16'",
            param="precision",
        )


def _matrix_kind(tensor: StoredTensor) -> str | None:
    return tensor.kind if len(tensor.shape) > 1 else None
