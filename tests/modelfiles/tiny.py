"""Small real model files, written by other people's writers where there are any."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.modelfiles.gguf_config import _GLOBAL_NAMES, _LAYER_NAMES
from headrace.modelfiles.hf_config import read_hf_config
from headrace.modelfiles.layout import expected_shapes

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


def byte_tokens() -> list[str]:
    """Two control tokens, then the byte alphabet, then two merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return ["<|start|>", "<|end|>", *alphabet, "ab", "abc"]


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, body = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        kind = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[values.dtype.name]
        header[name] = {
            "dtype": kind,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    write_raw_safetensors(path, header, body)


def write_raw_safetensors(path: Path, header: dict[str, Any], body: bytes) -> None:
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    shapes = expected_shapes(read_hf_config("config.json", config))
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, config: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """A whole Hugging Face checkpoint; returns its tensors."""
    config = CONFIG if config is None else config
    tensors = random_tensors(config)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    write_tokenizer(folder)
    return tensors


def write_tokenizer(folder: Path) -> None:
    tokens = byte_tokens()
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:2])
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = {
        "bos_token": "<|start|>",
        "eos_token": {"content": "<|end|>"},
        "chat_template": "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(texts))


def write_gguf(
    path: Path,
    *,
    kinds: dict[str, str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The same Llama as a GGUF file, q and k in llama.cpp's order; returns its tensors as ours.

    `kinds` gives GGUF names other types than F32; `metadata` overrides string values.
    """
    tensors = random_tensors(CONFIG)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_vocabulary(writer)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    for name, values in tensors.items():
        theirs = _gguf_name(name)
        rows = values
        if theirs.endswith(("attn_q.weight", "attn_k.weight")):
            heads = 4 if "attn_q" in theirs else 2
            rows = values.reshape(heads, 2, -1, 32).swapaxes(1, 2).reshape(values.shape)
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(theirs, "F32")]
        writer.add_tensor(theirs, gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = byte_tokens()
    tokens += [f"<unused{i}>" for i in range(CONFIG["vocab_size"] - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)


def _gguf_name(name: str) -> str:
    for theirs, ours in _GLOBAL_NAMES.items():
        if ours == name:
            return theirs
    _, _, index, part = name.split(".", 3)
    part, _, suffix = part.rpartition(".")
    theirs = next(theirs for theirs, ours in _LAYER_NAMES.items() if ours == part)
    return f"blk.{index}.{theirs}.{suffix}"
