"""Models of random weights in a published shape, written as 4-bit GGUF files.

They say nothing, but take a system as much work as the trained ones of their size would.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quant_shape_to_byte_shape, quantize
from numpy.typing import NDArray

from harness.weights import whole

Q4_0, Q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
FILE_TYPES = {Q4_0: 2, Q4_1: 3}  # as llama.cpp numbers them
NORMAL_TOKEN = 1  # of tokenizer.ggml.token_type

SPREAD = 0.02  # of the weights: a matrix keeps its input's size, roughly
QUIET = 0.1  # how much of its weight a token keeps that should not be said


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama with tied embeddings."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 500_000.0
    context_length: int = 8192
    norm_eps: float = 1e-5

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every layer's matrices."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        for layer in range(self.num_layers):
            yield f"blk.{layer}.attn_q.weight", queries, hidden
            yield f"blk.{layer}.attn_k.weight", keys, hidden
            yield f"blk.{layer}.attn_v.weight", keys, hidden
            yield f"blk.{layer}.attn_output.weight", hidden, queries
            yield f"blk.{layer}.ffn_gate.weight", inner, hidden
            yield f"blk.{layer}.ffn_up.weight", inner, hidden
            yield f"blk.{layer}.ffn_down.weight", hidden, inner

    def norms(self) -> Iterator[str]:
        for layer in range(self.num_layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"
        yield "output_norm.weight"


LLAMA_1B = Shape(
    name="Llama 3.2 1B",
    vocab_size=128_256,
    hidden_size=2048,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=8192,
)


def write_model(
    path: Path, shape: Shape, vocabulary: Path, *, kind: gguf.GGMLQuantizationType, seed: int
) -> None:
    """Write `shape` with layers in `kind` and embeddings in Q8_0.

    The tokenizer is that of the GGUF file `vocabulary`, filled up with words of no use. The same
    seed writes the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    whole(path, lambda part: _write(part, shape, gguf.GGUFReader(vocabulary), kind, seed))


def _write(
    path: Path, shape: Shape, source: gguf.GGUFReader, kind: gguf.GGMLQuantizationType, seed: int
) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape, kind)
    quiet = _add_vocabulary(writer, shape, source)
    tensors = [
        ("token_embd.weight", (shape.vocab_size, shape.hidden_size), Q8_0),
        *((name, (rows, columns), kind) for name, rows, columns in shape.matrices()),
        *((name, (shape.hidden_size,), F32) for name in shape.norms()),
    ]
    for name, size, stored in tensors:
        is_plain = stored == F32
        stored_size = size if is_plain else quant_shape_to_byte_shape(size, stored)
        dtype = np.dtype(np.float32 if is_plain else np.uint8)
        num_bytes = int(np.prod(stored_size)) * dtype.itemsize
        writer.add_tensor_info(name, stored_size, dtype, num_bytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (name, size, stored) in enumerate(tensors):
        values = _values(name, size, np.random.default_rng([seed, number]))
        if name == "token_embd.weight":
            values[quiet] *= QUIET
        writer.write_tensor_data(quantize(values, stored))
    writer.close()


def _values(name: str, size: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    if name.endswith("norm.weight"):
        return np.ones(size, np.float32)
    return random.standard_normal(size, np.float32) * np.float32(SPREAD)


def _describe(writer: gguf.GGUFWriter, shape: Shape, kind: gguf.GGMLQuantizationType) -> None:
    writer.add_name(f"{shape.name} with random weights")
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)


def _add_vocabulary(
    writer: gguf.GGUFWriter, shape: Shape, source: gguf.GGUFReader
) -> NDArray[np.bool_]:
    """Copy the tokenizer, filled up; returns which tokens should not be said.

    These are control tokens and parts of characters: an answer that has one shows no text for it,
    and text is what a client's clock goes by.
    """
    fields: dict[str, Any] = {
        name: field.contents()
        for name, field in source.fields.items()
        if name.startswith("tokenizer.")
    }
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    missing = shape.vocab_size - len(tokens)
    if missing < 0:
        raise ValueError(f"{len(tokens)} tokens do not fit into a vocabulary of {shape.vocab_size}")
    tokens += [f"Ġu{number}" for number in range(missing)]
    kinds += [NORMAL_TOKEN] * missing
    for name, content in fields.items():
        field = source.fields[name]
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        element = field.types[-1] if is_array else None
        writer.add_key_value(name, content, field.types[0], element)
    return np.array(
        [k != NORMAL_TOKEN or not _is_plain(t) for t, k in zip(tokens, kinds, strict=True)]
    )


def _is_plain(token: str) -> bool:
    """Whether the bytes are ASCII alone; a space and a new line have letters of their own."""
    return token.replace("Ġ", "").replace("Ċ", "").isascii()
