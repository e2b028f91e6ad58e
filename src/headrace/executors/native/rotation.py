"""Turns a decoder's residual stream, so that no number stands out and 8 bits hold each of them.

Data-free and done once, in the weights: with an orthogonal R, x becomes xR. An RMSNorm without
weights commutes with R, so its weights move into the matrices behind it; what reads the stream gets
R from the right, what writes to it R as well, on its other side. Values get a rotation of their own
within each head, undone in the output projection. (QuaRot, https://arxiv.org/abs/2404.00456.)
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.quantization import round_bf16, to_float32
from headrace.modelfiles.weights import StoredTensor, Weights

Floats = NDArray[np.float32]

_SEED = 0
_ROWS = 8192  # rotated at a time, so that a large vocabulary needs no second copy in float32
_TILE = 256  # rows, so that they stay in the cache
_ROWS_ALONE = ("embed_tokens.weight", "lm_head.weight")


def unrotatable(config: ModelConfig) -> str | None:
    """Why a model of this shape cannot be rotated, as a sentence."""
    if config.post_norms:
        return (
            "precision 'w8a8' rotates what layers add to each other, and this architecture"
            f" ({config.architecture}) has norms with weights right before that: use 'w8a16'"
        )
    return None


class Rotation:
    """An orthogonal matrix of any size: random signs, then a fast transform that mixes all of x.

    It is the Walsh-Hadamard one on the largest power of two in the size, and a random matrix on
    what is odd of it. Sums are taken one by one and not by a library whose order may change; the
    random matrix is LAPACK's, whose last digits may be other ones on another processor.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._power = size & -size
        self._signs = rng.choice(np.array([-1, 1], np.float32), size)
        odd, _ = np.linalg.qr(rng.standard_normal((size // self._power,) * 2))
        self._odd = odd.astype(np.float32)

    def apply(self, x: Floats) -> Floats:
        """Return xR of rows x, (..., size)."""
        rows = x.reshape(-1, x.shape[-1])
        turned = np.empty(rows.shape, np.float32)
        for start in range(0, len(rows), _TILE):
            tile = slice(start, start + _TILE)
            turned[tile] = self._columns(
                np.multiply(rows[tile].T, self._signs[:, None], order="C")
            ).T
        return turned.reshape(x.shape)

    def _columns(self, x: Floats) -> Floats:
        """Transform columns (size, count): whole rows are added, which is what is fast."""
        mixed = _walsh_hadamard(x.reshape(len(self._odd), self._power, -1))
        if len(self._odd) == 1:
            return mixed.reshape(x.shape)
        turned = np.zeros_like(mixed)
        for part, weights in zip(mixed, self._odd, strict=True):
            turned += weights[:, None, None] * part
        return turned.reshape(x.shape)


class RotatedWeights:
    """The weights of the rotated model, made when they are asked for. Norm weights are ones.

    The head is always a tensor of its own here: it holds the last norm's weights.
    """

    def __init__(self, weights: Weights, config: ModelConfig) -> None:
        rng = np.random.default_rng(_SEED)
        self._weights = weights
        self._config = config
        self._residual = Rotation(config.hidden_size, rng)
        self._values = Rotation(config.head_dim, rng)

    def names(self) -> frozenset[str]:
        return self._weights.names() | {"lm_head.weight"}

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(self._source(name))

    def stored(self, name: str) -> StoredTensor:
        values = self.bfloat16(name)
        return StoredTensor("BF16", values.shape, values.reshape(-1).view(np.uint8))

    def float32(self, name: str) -> Floats:
        return np.concatenate(list(self._rotated(name)))

    def bfloat16(self, name: str) -> NDArray[np.uint16]:
        parts = [round_bf16(np.ascontiguousarray(part)) for part in self._rotated(name)]
        return np.concatenate(parts)

    def _rotated(self, name: str) -> Iterator[Floats]:
        source, kind = self._source(name), ".".join(name.split(".")[-2:])
        if kind in _ROWS_ALONE:  # as large as the vocabulary
            gain = self._gain(name)
            for values in _in_chunks(self._weights.stored(source)):
                yield self._residual.apply(values * gain)
        elif kind.endswith("norm.weight") and not kind.startswith(("q_", "k_")):
            yield np.ones(self.shape(name), np.float32)
        else:
            yield self._layer_tensor(name, kind, self._weights.float32(source))

    def _layer_tensor(self, name: str, kind: str, values: Floats) -> Floats:
        match kind:
            case "q_proj.weight" | "k_proj.weight" | "gate_proj.weight" | "up_proj.weight":
                return self._residual.apply(values * self._gain(name))
            case "v_proj.weight":
                turned = self._residual.apply(values * self._gain(name))
                return self._turn_heads(turned.T).T
            case "o_proj.weight" | "down_proj.weight":
                inner = self._turn_heads(values) if kind.startswith("o_") else values
                return self._residual.apply(inner.T).T
            case "v_proj.bias":
                return self._turn_heads(values)
            case "o_proj.bias" | "down_proj.bias":
                return self._residual.apply(values)
        return values  # of q and k within their heads, of gate and up: nothing turns there

    def _turn_heads(self, x: Floats) -> Floats:
        """Turn each head of rows (..., heads * head_dim)."""
        heads = x.reshape(*x.shape[:-1], -1, self._config.head_dim)
        return self._values.apply(heads).reshape(x.shape)

    def _gain(self, name: str) -> Floats | np.float32:
        """The weights of the norm before a matrix, which move into it."""
        if name == "model.embed_tokens.weight":
            return np.float32(1)
        if name == "lm_head.weight":
            return self._weights.float32("model.norm.weight")
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        layer = prefix.rpartition(".")[0]
        before = "post_attention" if part in {"gate_proj", "up_proj"} else "input"
        return self._weights.float32(f"{layer}.{before}_layernorm.weight")

    def _source(self, name: str) -> str:
        tied = self._config.tied_embeddings and name == "lm_head.weight"
        return "model.embed_tokens.weight" if tied else name


def _in_chunks(tensor: StoredTensor) -> Iterator[Floats]:
    num_rows, width = tensor.shape
    row_bytes = tensor.data.size // num_rows
    for start in range(0, num_rows, _ROWS):
        rows = min(_ROWS, num_rows - start)
        data = tensor.data[start * row_bytes : (start + rows) * row_bytes]
        yield to_float32(StoredTensor(tensor.kind, (rows, width), data))


def _walsh_hadamard(x: Floats) -> Floats:
    """Transform the middle axis of (odd, power, count), orthogonally; x is used up."""
    odd, power, count = x.shape
    step, out = 1, np.empty_like(x)
    while step < power:
        pairs, sums = (y.reshape(odd, power // (2 * step), 2, step, count) for y in (x, out))
        np.add(pairs[:, :, 0], pairs[:, :, 1], out=sums[:, :, 0])
        np.subtract(pairs[:, :, 0], pairs[:, :, 1], out=sums[:, :, 1])
        x, out = out, x
        step *= 2
    x *= np.float32(power**-0.5)
    return x
