"""The executors' arithmetic: every architecture against transformers, on random tiny weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from executors.batches import chunked_logits
from executors.conftest import Kind
from headrace.modelfiles.model import open_model

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch", reason="needs the reference extra")
transformers = pytest.importorskip("transformers", reason="needs the reference extra")

VOCAB_SIZE = 97
LENGTHS = (70, 33, 1, 45, 300, 530)  # over, at and under blocks of 32 and chunks of 256
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 640,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
ODD_SIZES = {
    "hidden_size": 72,
    "intermediate_size": 100,
    "head_dim": 20,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama tied, biases": lambda: transformers.LlamaConfig(
        **SHAPE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama 3 rope": lambda: transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "llama yarn rope": lambda: transformers.LlamaConfig(**SHAPE, rope_parameters=YARN_ROPE),
    "llama head_dim 64": lambda: transformers.LlamaConfig(**{**SHAPE, "head_dim": 64}),
    "llama odd sizes": lambda: transformers.LlamaConfig(
        **{**SHAPE, **ODD_SIZES}, attention_bias=True, mlp_bias=True
    ),
    "llama head_dim 256": lambda: transformers.LlamaConfig(**{**SHAPE, "head_dim": 256}),
    "mistral window": lambda: transformers.MistralConfig(**SHAPE, sliding_window=20),
    "mistral window of a block": lambda: transformers.MistralConfig(**SHAPE, sliding_window=32),
    "mistral window beyond a chunk": lambda: transformers.MistralConfig(
        **SHAPE, sliding_window=290
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SHAPE,
        sliding_window=16,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=GEMMA_ROPES,
    ),
}


@pytest.fixture(params=MODELS, scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A transformers model of random weights, with the folder that holds it and a tokenizer.

    Its weights are bf16 numbers, which every executor can keep as they are.
    """
    torch.manual_seed(7)
    config = MODELS[request.param]()
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():  # biases and norms start as 0 and 1
        noise = torch.randn_like(parameter)
        noisy = parameter.data + (0.1 * noise if "norm" in name else 0.2 * noise)
        parameter.data = noisy.to(torch.bfloat16).to(torch.float32)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    vocabulary = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))
    return model, folder


def test_logits_of_ragged_chunked_batches_are_those_of_transformers(
    kind: Kind, reference: Any
) -> None:
    model, folder = reference
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, VOCAB_SIZE, length) for length in LENGTHS]
    executor = kind.create(open_model(folder), num_threads=2, kv_cache_memory=64 << 20)
    try:
        found = chunked_logits(executor, [prompt.tolist() for prompt in prompts], rng)
    finally:
        executor.close()
    for ours, prompt in zip(found, prompts, strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor(prompt[None])).logits[0].numpy()
        error = np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean())
    assert error < kind.error
