"""A ModelConfig from the config.json of a Hugging Face checkpoint, old or new style."""

from collections.abc import Mapping
from typing import Any, Literal

from headrace.errors import ModelFileError
from headrace.modelfiles.config import MAX_HEAD_DIM, MAX_LAYERS, ModelConfig, Rope, check_config
from headrace.modelfiles.fields import Fields
from headrace.modelfiles.rope import build_rope

_COMMON = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
# By model_type: the family, and what transformers assumes where the file is silent.
_FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", _COMMON),
    "mistral": ("mistral", {**_COMMON, "max_position_embeddings": 131_072, "sliding_window": 4096}),
    "qwen2": ("qwen2", {**_COMMON, "max_position_embeddings": 32_768}),
    "qwen3": ("qwen3", {**_COMMON, "max_position_embeddings": 32_768, "head_dim": 128}),
    "gemma3_text": ("gemma3", _GEMMA),
}
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_hf_config(where: str, raw: Mapping[str, Any]) -> ModelConfig:
    """Translate a parsed config.json; `where` names the file in errors."""
    if "quantization_config" in raw:
        method = Fields(where, raw).mapping("quantization_config").get("quant_method", "unknown")
        raise ModelFileError(
            f"{where}: weights quantized by {method!r} are not supported in a Hugging Face folder; "
            f"supported are float32, float16 and bfloat16 (or a GGUF file)"
        )
    text = _text_part(where, raw)
    family, defaults = _family(where, text)
    return check_config(where, _Translation(Fields(where, text, defaults), family).config())


def _text_part(where: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own keys, also of a multimodal Gemma 3."""
    if raw.get("model_type") != "gemma3":
        return raw
    text = Fields(where, raw).mapping("text_config")
    shared = {key: raw[key] for key in ("tie_word_embeddings",) if key in raw}
    return {**shared, "model_type": "gemma3_text", **text}


def _family(where: str, raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        names = ", ".join([*_FAMILIES, "gemma3"])
        raise ModelFileError(
            f"{where}: model_type {kind!r} is not supported; supported are {names}"
        )
    return _FAMILIES[kind]


class _Translation:
    """One config.json on its way to a ModelConfig."""

    def __init__(self, fields: Fields, family: str) -> None:
        self._fields = fields
        self._family = family

    def config(self) -> ModelConfig:
        fields, family = self._fields, self._family
        self._refuse_variants()
        num_layers, num_heads = (
            fields.integer("num_hidden_layers", most=MAX_LAYERS),
            fields.integer("num_attention_heads"),
        )
        hidden_size = fields.integer("hidden_size")
        head_dim = fields.integer("head_dim", hidden_size // num_heads, most=MAX_HEAD_DIM)
        attention_bias = fields.flag("attention_bias") if family != "mistral" else False
        layer_types = self._layer_types(num_layers)
        window = fields.integer("sliding_window", 0, least=0) if _SLIDING in layer_types else 0
        ropes = {kind: self._rope(kind, head_dim) for kind in set(layer_types)}
        gemma = family == "gemma3"
        return ModelConfig(
            architecture=family,
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=head_dim,
            intermediate_size=fields.integer("intermediate_size"),
            vocab_size=fields.integer("vocab_size"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            norm_eps=fields.number("rms_norm_eps"),
            activation=self._activation(),
            attention_scale=(fields.number("query_pre_attn_scalar") if gemma else head_dim) ** -0.5,
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias and family != "qwen2",
            mlp_bias=fields.flag("mlp_bias") if family == "llama" else False,
            qk_norm=family in ("qwen3", "gemma3"),
            post_norms=gemma,
            embedding_scale=hidden_size**0.5 if gemma else 1.0,
            tied_embeddings=fields.flag("tie_word_embeddings"),
            layer_windows=tuple(window if kind == _SLIDING else 0 for kind in layer_types),
            layer_ropes=tuple(ropes[kind] for kind in layer_types),
        )

    def _refuse_variants(self) -> None:
        """Options that change the arithmetic and that no model we serve uses."""
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if self._fields.get(key):
                raise self._fields.error(key, self._fields.get(key), "null (not supported)")
        if self._fields.flag("use_bidirectional_attention"):
            raise self._fields.error("use_bidirectional_attention", found=True, expected="false")
        partial = self._fields.get("partial_rotary_factor")
        if partial not in (None, 1, 1.0):
            raise self._fields.error("partial_rotary_factor", partial, "1 (not supported)")

    def _activation(self) -> Literal["silu", "gelu_tanh"]:
        key = "hidden_activation" if self._fields.get("hidden_activation") else "hidden_act"
        name = self._fields.text(key, "silu")
        if name not in _ACTIVATIONS:
            raise self._fields.error(key, name, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def _layer_types(self, num_layers: int) -> list[str]:
        given = self._fields.get("layer_types")
        if given is None:
            return [_SLIDING if self._slides(index) else _FULL for index in range(num_layers)]
        if not isinstance(given, list) or len(given) != num_layers:
            raise self._fields.error("layer_types", given, f"a list of {num_layers} names")
        for kind in given:
            if kind not in (_FULL, _SLIDING):
                raise self._fields.error("layer_types", kind, f"{_FULL} or {_SLIDING}")
        return given

    def _slides(self, index: int) -> bool:
        fields = self._fields
        if self._family == "gemma3":
            key = "_sliding_window_pattern"
            key = key if fields.get(key) else "sliding_window_pattern"
            return (index + 1) % fields.integer(key, 6) != 0
        if self._family == "mistral":
            return bool(fields.get("sliding_window"))
        return fields.flag("use_sliding_window") and index >= fields.integer(
            "max_window_layers", 28, least=0
        )

    def _rope(self, kind: str, head_dim: int) -> Rope:
        theta, scaling = self._rope_parameters(kind)
        longest = self._fields.integer("max_position_embeddings")
        return build_rope(theta, head_dim, longest, scaling, self._fields.where)

    def _rope_parameters(self, kind: str) -> tuple[float, Mapping[str, Any]]:
        """New checkpoints say rope_parameters, per layer type for Gemma; old ones two flat keys."""
        fields = self._fields
        parameters = fields.mapping("rope_parameters")
        parameters = parameters.get(kind, parameters) or {}
        if not isinstance(parameters, Mapping):
            raise fields.error("rope_parameters", parameters, "a mapping")
        local = self._family == "gemma3" and kind == _SLIDING
        default = fields.number("rope_local_base_freq" if local else "rope_theta")
        if parameters:
            return Fields(fields.where, parameters).number("rope_theta", default), parameters
        return default, {} if local else fields.mapping("rope_scaling")
