"""Builds a decoder as an OpenVINO model from its config and weights. Knows no file, batch or CPU.

The tokens of all sequences are flattened: the token axis is the batch axis, the length axis is 1.
"""

from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as op

from headrace.executors.openvino.constants import Constants
from headrace.executors.openvino.literals import Literals
from headrace.executors.openvino.paged_attention import BatchInputs, paged_attention
from headrace.modelfiles.config import ModelConfig, Rope

ACTIVATIONS = {"silu": op.swish, "gelu_tanh": lambda x: op.gelu(x, "tanh")}


class DecoderGraph:
    """One decoder's graph; shapes are (num_tokens, 1, features) unless said otherwise."""

    def __init__(self, config: ModelConfig, constants: Constants) -> None:
        self._config = config
        self._constants = constants
        self._literals = Literals()
        self._ints = self._literals.ints
        self._parameters: list[ov.Node] = []
        self._rotations: dict[Rope, tuple[ov.Node, ov.Node]] = {}

    def build(self) -> ov.Model:
        """Inputs are the step's integers and two caches a layer; the output is the rows' logits."""
        config = self._config
        token_ids = self._input("token_ids")  # (num_tokens,)
        self._positions = self._input("positions")  # (num_tokens,)
        self._rows = self._input("rows")  # (num_rows,) tokens after which logits are wanted
        self._batch = BatchInputs(
            past_lens=self._input("past_lens"),
            subsequence_begins=self._input("subsequence_begins"),
            block_indices=self._input("block_indices"),
            block_indices_begins=self._input("block_indices_begins"),
            max_context_len=self._input("max_context_len", []),
        )
        embedding = self._constants.matrix("model.embed_tokens.weight")
        x = op.unsqueeze(op.gather(embedding, token_ids, self._ints(0)), self._ints(1))
        if config.embedding_scale != 1.0:
            x = op.multiply(x, self._literals.number(config.embedding_scale))
        for index in range(config.num_layers):
            x = self._layer(x, index)
        x = self._norm(x, "model.norm.weight")
        head = embedding if config.tied_embeddings else self._constants.matrix("lm_head.weight")
        logits = op.squeeze(op.matmul(x, head, False, True), self._ints(1))  # (num_rows, vocab)
        return ov.Model([op.result(logits)], self._parameters, "decoder")

    def _layer(self, x: ov.Node, index: int) -> ov.Node:
        name = f"model.layers.{index}"
        post = self._config.post_norms
        hidden = self._attention(self._norm(x, f"{name}.input_layernorm.weight"), index)
        if index == self._config.num_layers - 1:
            # nothing after the last attention looks at other tokens
            x, hidden = (op.gather(node, self._rows, self._ints(0)) for node in (x, hidden))
        hidden = self._linear(hidden, f"{name}.self_attn.o_proj", bias=self._config.output_bias)
        if post:
            hidden = self._norm(hidden, f"{name}.post_attention_layernorm.weight")
        x = op.add(x, hidden)
        before = "pre_feedforward_layernorm" if post else "post_attention_layernorm"
        hidden = self._mlp(self._norm(x, f"{name}.{before}.weight"), f"{name}.mlp")
        if post:
            hidden = self._norm(hidden, f"{name}.post_feedforward_layernorm.weight")
        return op.add(x, hidden)

    def _mlp(self, x: ov.Node, name: str) -> ov.Node:
        activation, bias = ACTIVATIONS[self._config.activation], self._config.mlp_bias
        gate, up = self._gate_and_up(x, name, bias=bias)
        return self._linear(op.multiply(activation(gate), up), f"{name}.down_proj", bias=bias)

    def _gate_and_up(self, x: ov.Node, name: str, *, bias: bool) -> Sequence[ov.Node]:
        if bias or not self._constants.joins_products:
            return [self._linear(x, f"{name}.{part}_proj", bias=bias) for part in ("gate", "up")]
        width = self._config.intermediate_size
        names = (f"{name}.gate_proj.weight", f"{name}.up_proj.weight")
        both = op.matmul(x, self._constants.matrix(*names), False, True)
        parts: list[ov.Node] = op.variadic_split(
            both, self._literals.axis(2), self._ints(width, width)
        ).outputs()
        return parts

    def _attention(self, hidden: ov.Node, index: int) -> ov.Node:
        config, name = self._config, f"model.layers.{index}.self_attn"
        query, key, value = (
            self._linear(hidden, f"{name}.{part}_proj", bias=config.qkv_bias) for part in "qkv"
        )
        rotation = self._rotation(config.layer_ropes[index])
        attended = paged_attention(
            self._rotate(self._heads(query, config.num_heads, f"{name}.q_norm"), rotation),
            self._rotate(self._heads(key, config.num_kv_heads, f"{name}.k_norm"), rotation),
            op.reshape(value, self._ints(0, -1), True),
            key_cache=self._input(f"key_cache.{index}", [-1] * 4, ov.Type.dynamic),
            value_cache=self._input(f"value_cache.{index}", [-1] * 4, ov.Type.dynamic),
            batch=self._batch,
            literals=self._literals,
            scale=config.attention_scale,
            window=config.layer_windows[index],
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        width = config.num_heads * config.head_dim
        return op.reshape(op.unsqueeze(attended, self._ints(1)), self._ints(0, 1, width), True)

    def _heads(self, x: ov.Node, heads: int, norm: str) -> ov.Node:
        """(num_tokens, 1, heads, head_dim), each head normed where the model does so."""
        x = op.reshape(x, self._ints(0, 0, heads, self._config.head_dim), True)
        return self._norm(x, f"{norm}.weight") if self._config.qk_norm else x

    def _rotate(self, x: ov.Node, rotation: tuple[ov.Node, ov.Node]) -> ov.Node:
        """(num_tokens, heads * head_dim); the plugin fuses this shape into one kernel."""
        half = self._config.head_dim // 2
        cos, sin = rotation
        x = op.transpose(x, self._ints(0, 2, 1, 3))
        left, right = op.variadic_split(x, self._literals.axis(3), self._ints(half, half)).outputs()
        turned = op.concat([op.multiply(right, self._literals.number(-1)), left], -1)
        x = op.add(op.multiply(x, cos), op.multiply(turned, sin))
        return op.reshape(op.transpose(x, self._ints(0, 2, 1, 3)), self._ints(0, -1), True)

    def _rotation(self, rope: Rope) -> tuple[ov.Node, ov.Node]:
        """The cosines and sines, (num_tokens, 1, 1, head_dim), shared by all layers of one rope."""
        if rope not in self._rotations:
            inverse = np.array(rope.inverse_frequencies, np.float32).reshape(1, 1, 1, -1)
            positions = op.reshape(
                op.convert(self._positions, "f32"), self._ints(-1, 1, 1, 1), False
            )
            angles = op.multiply(positions, op.constant(inverse))
            angles = op.concat([angles, angles], -1)
            self._rotations[rope] = (
                self._scaled(op.cos(angles), rope.attention_factor),
                self._scaled(op.sin(angles), rope.attention_factor),
            )
        return self._rotations[rope]

    def _scaled(self, x: ov.Node, factor: float) -> ov.Node:
        return x if factor == 1.0 else op.multiply(x, self._literals.number(factor))

    def _norm(self, x: ov.Node, name: str) -> ov.Node:
        """RMSNorm, in the shape that the plugin fuses into one kernel."""
        mean = op.reduce_mean(op.power(x, self._literals.number(2)), self._ints(-1), True)
        root = op.sqrt(op.add(mean, self._literals.number(self._config.norm_eps)))
        normed = op.multiply(x, op.divide(self._literals.number(1), root))
        return op.multiply(normed, self._constants.vector(name))

    def _linear(self, x: ov.Node, name: str, *, bias: bool) -> ov.Node:
        x = op.matmul(x, self._constants.matrix(f"{name}.weight"), False, True)
        return op.add(x, self._constants.vector(f"{name}.bias")) if bias else x

    def _input(
        self, name: str, shape: Sequence[int] = (-1,), kind: ov.Type = ov.Type.i32
    ) -> ov.Node:
        node = op.parameter(list(shape), kind)
        node.set_friendly_name(name)
        node.output(0).get_tensor().set_names({name})
        self._parameters.append(node)
        return node
