"""The tensors that a decoder of a given shape consists of."""

from collections.abc import Iterator

from headrace.modelfiles.config import ModelConfig

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor's name and shape, in the order in which the model uses them."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes.update((prefix + name, shape) for name, shape in _layer(config))
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = embedding
    return shapes


def _layer(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    yield from _attention(config)
    yield from _mlp(config)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.post_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    yield from ((f"{norm}.weight", (config.hidden_size,)) for norm in norms)


def _attention(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield f"self_attn.{name}_proj.weight", (rows, config.hidden_size)
        if config.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (config.hidden_size, heads)
    if config.output_bias:
        yield "self_attn.o_proj.bias", (config.hidden_size,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _mlp(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    outer, inner = config.hidden_size, config.intermediate_size
    for name, shape in (("gate", (inner, outer)), ("up", (inner, outer)), ("down", (outer, inner))):
        yield f"mlp.{name}_proj.weight", shape
        if config.mlp_bias:
            yield f"mlp.{name}_proj.bias", (shape[0],)
