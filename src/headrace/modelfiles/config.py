"""A decoder's shape as one flat description, whatever file it was read from.

The five architectures we serve (Llama, Mistral, Qwen2, Qwen3, Gemma 3) differ only in these fields;
nothing above this floor asks for an architecture by name.
"""

from dataclasses import dataclass
from typing import Final, Literal

from headrace.errors import ModelFileError

# More than any model has; a corrupt number beyond them would fill the memory.
MAX_LAYERS: Final = 4096
MAX_HEAD_DIM: Final = 8192


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: the angle of pair i at position p is `p * inverse_frequencies[i]`.

    Every scaling variant (linear, llama3, yarn, ...) is already worked into the frequencies and
    `attention_factor`, which multiplies cos and sin.
    """

    inverse_frequencies: tuple[float, ...]  # (head_dim / 2,)
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder. Norm weights are plain multipliers (Gemma's 1 + w is folded)."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float  # multiplies q.k
    qkv_bias: bool = False
    output_bias: bool = False  # of o_proj
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm per head on q and k, before the rotary embedding
    post_norms: bool = False  # norms after attention and after the MLP too (Gemma)
    embedding_scale: float = 1.0
    tied_embeddings: bool = False
    layer_windows: tuple[int, ...]  # per layer: sliding window in tokens, 0 = all
    layer_ropes: tuple[Rope, ...]  # per layer
    eos_token_ids: tuple[int, ...] = ()


def check_config(where: str, config: ModelConfig) -> ModelConfig:
    """The config itself; ModelFileError when its numbers do not fit together."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{where}: {config.num_heads} heads cannot share {config.num_kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise ModelFileError(f"{where}: head size {config.head_dim} is odd; expected pairs")
    return config
