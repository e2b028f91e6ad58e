"""A ModelConfig from the metadata of a GGUF file, and its tensors under our names."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from headrace.errors import ModelFileError
from headrace.modelfiles.checkpoint import Entry, interleaved_to_halves
from headrace.modelfiles.config import MAX_HEAD_DIM, MAX_LAYERS, ModelConfig, Rope, check_config
from headrace.modelfiles.fields import Fields
from headrace.modelfiles.gguf import GGUFFile
from headrace.modelfiles.quantization import to_float32
from headrace.modelfiles.rope import build_rope
from headrace.modelfiles.weights import StoredTensor

_FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
_GEMMA_27B_LAYERS = 62  # the one Gemma 3 whose attention scale is not that of its head_dim
_GEMMA_LOCAL_THETA = 10_000.0
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER_NAMES = {
    **_LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Translate the metadata; what it leaves open (biases, ties) the tensors tell."""
    return check_config(str(file.path), _Translation(file).config())


def gguf_entries(file: GGUFFile, config: ModelConfig) -> dict[str, Entry]:
    """Every tensor of the file that has a name of ours."""
    changes = {}
    if config.architecture == "llama":
        changes = {
            "attn_q": interleaved_to_halves(config.num_heads),
            "attn_k": interleaved_to_halves(config.num_kv_heads),
        }
    entries = {}
    for name in file.tensors:
        ours, part = _our_name(name, gemma=config.post_norms)
        if ours:
            entries[ours] = Entry(file.path, name, stored_tensor(file, name), changes.get(part))
    return entries


def stored_tensor(file: GGUFFile, name: str) -> StoredTensor:
    info = file.tensors[name]
    return StoredTensor(info.kind, info.shape, file.data[info.start : info.end])


def _our_name(name: str, *, gemma: bool) -> tuple[str | None, str]:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name], name
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    part = match[2] if match else ""
    ours = (_GEMMA_LAYER_NAMES if gemma else _LAYER_NAMES).get(part)
    return (f"model.layers.{match[1]}.{ours}.{match[3]}" if match and ours else None), part


class _Translation:
    """One file's metadata on its way to a ModelConfig."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._family = self._supported_family()
        self._fields = Fields(str(file.path), file.metadata, prefix=f"{self._family}.")

    def config(self) -> ModelConfig:
        fields, family = self._fields, self._family
        if fields.integer("expert_count", 0, least=0):
            raise fields.error("expert_count", fields.get("expert_count"), "none (not supported)")
        gemma = family == "gemma3"
        num_layers, num_heads = (
            fields.integer("block_count", most=MAX_LAYERS),
            fields.integer("attention.head_count"),
        )
        hidden_size = fields.integer("embedding_length")
        head_dim = fields.integer(
            "attention.key_length", hidden_size // num_heads, most=MAX_HEAD_DIM
        )
        self._refuse_unequal_heads(head_dim)
        slides = [self._slides(index) for index in range(num_layers)]
        window = fields.integer("attention.sliding_window", 0, least=0) if any(slides) else 0
        ropes = {sliding: self._rope(head_dim, sliding=sliding) for sliding in set(slides)}
        return ModelConfig(
            architecture=family,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            intermediate_size=fields.integer("feed_forward_length"),
            vocab_size=self._vocab_size(),
            max_position_embeddings=fields.integer("context_length"),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            activation=_activation(gemma=gemma),
            attention_scale=self._attention_scale(hidden_size, num_heads, head_dim, num_layers),
            qkv_bias=self._has("blk.0.attn_q.bias"),
            output_bias=self._has("blk.0.attn_output.bias"),
            mlp_bias=self._has("blk.0.ffn_down.bias"),
            qk_norm=self._has("blk.0.attn_q_norm.weight"),
            post_norms=gemma,
            embedding_scale=hidden_size**0.5 if gemma else 1.0,
            tied_embeddings=not self._has("output.weight"),
            layer_windows=tuple(window if sliding else 0 for sliding in slides),
            layer_ropes=tuple(ropes[sliding] for sliding in slides),
        )

    def _supported_family(self) -> str:
        where, metadata = str(self._file.path), self._file.metadata
        if Fields(where, metadata).integer("split.count", 1, least=0) > 1:
            raise ModelFileError(
                f"{where}: one part of a split model; expected a single file "
                f"(join the parts with llama-gguf-split --merge)"
            )
        family = Fields(where, metadata).text("general.architecture")
        if family not in _FAMILIES:
            raise ModelFileError(
                f"{where}: architecture {family!r} is not supported; "
                f"supported are {', '.join(_FAMILIES)}"
            )
        return family

    def _refuse_unequal_heads(self, head_dim: int) -> None:
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._fields.integer(key, head_dim) != head_dim:
                raise self._fields.error(key, self._fields.get(key), f"{head_dim}, the head size")

    def _vocab_size(self) -> int:
        embedding = self._file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelFileError(f"{self._file.path}: tensor 'token_embd.weight' is missing")
        return embedding.shape[0]

    def _attention_scale(
        self, hidden_size: int, num_heads: int, head_dim: int, num_layers: int
    ) -> float:
        if self._family == "gemma3" and num_layers == _GEMMA_27B_LAYERS:
            return 1 / math.sqrt(hidden_size / num_heads)
        return 1 / math.sqrt(head_dim)

    def _slides(self, index: int) -> bool:
        """Only Gemma's windows count: llama.cpp runs the other families without."""
        if self._family != "gemma3":
            return False
        pattern = self._fields.get("attention.sliding_window_pattern")
        if isinstance(pattern, np.ndarray) and index < len(pattern):
            return bool(pattern[index])
        return (index + 1) % self._fields.integer("attention.sliding_window_pattern", 6) != 0

    def _rope(self, head_dim: int, *, sliding: bool) -> Rope:
        fields = self._fields
        theta = fields.number("rope.freq_base", 10_000.0)
        if sliding:
            theta = fields.number("rope.freq_base_swa", _GEMMA_LOCAL_THETA)
        longest = fields.integer("context_length")
        scaling = {} if sliding else self._scaling()
        rope = build_rope(theta, head_dim, longest, scaling, fields.where)
        return rope if sliding else self._divided(rope)

    def _scaling(self) -> Mapping[str, Any]:
        fields = self._fields
        kind = fields.text("rope.scaling.type", "none")
        if kind == "none":
            return {}
        scaling = {
            "rope_type": kind,
            "factor": fields.number("rope.scaling.factor", 1.0),
            "original_max_position_embeddings": fields.get("rope.scaling.original_context_length"),
            "beta_fast": fields.get("rope.scaling.yarn_beta_fast"),
            "beta_slow": fields.get("rope.scaling.yarn_beta_slow"),
        }
        return {key: value for key, value in scaling.items() if value is not None}

    def _divided(self, rope: Rope) -> Rope:
        """Llama 3 files carry their scaling as one divisor a pair."""
        if not self._has("rope_freqs.weight"):
            return rope
        divisors = to_float32(stored_tensor(self._file, "rope_freqs.weight"))
        frequencies = np.array(rope.inverse_frequencies)
        if divisors.shape != frequencies.shape or not np.all(divisors > 0):
            raise ModelFileError(
                f"{self._file.path}: tensor 'rope_freqs.weight' has shape {list(divisors.shape)}; "
                f"expected {len(frequencies)} positive divisors"
            )
        return Rope(tuple((frequencies / divisors).tolist()), rope.attention_factor)

    def _has(self, name: str) -> bool:
        return name in self._file.tensors


def _activation(*, gemma: bool) -> Literal["silu", "gelu_tanh"]:
    return "gelu_tanh" if gemma else "silu"
