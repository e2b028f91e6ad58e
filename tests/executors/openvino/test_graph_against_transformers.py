"""The graph's arithmetic: every architecture against transformers, on random tiny weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from headrace.executors.config import ExecutorConfig
from headrace.executors.executor import Batch
from headrace.executors.openvino.executor import OpenVinoExecutor
from headrace.modelfiles.model import open_model

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch", reason="needs the reference extra")
transformers = pytest.importorskip("transformers", reason="needs the reference extra")

VOCAB_SIZE = 96
LENGTHS = (70, 33, 1, 45)  # over, at and under the block of 32
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 0,
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
    "mistral window": lambda: transformers.MistralConfig(**SHAPE, sliding_window=20),
    "mistral window of a block": lambda: transformers.MistralConfig(**SHAPE, sliding_window=32),
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


@pytest.fixture(params=MODELS)
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A transformers model of random weights, saved with a tokenizer in `tmp_path`."""
    torch.manual_seed(7)
    config = MODELS[request.param]()
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():  # biases and norms start as 0 and 1
        noise = torch.randn_like(parameter)
        parameter.data = parameter.data + (0.1 * noise if "norm" in name else 0.2 * noise)
    model.save_pretrained(tmp_path)
    vocabulary = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(vocabulary, unk_token="t0")).save(str(tmp_path / "tokenizer.json"))
    return model


def expected_logits(model: Any, prompts: list[np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        return [model(torch.tensor(prompt[None])).logits[0].numpy() for prompt in prompts]


def chunked_logits(
    executor: OpenVinoExecutor, prompts: list[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Feed ragged sequences in random chunks over shuffled blocks; all rows of every step."""
    free = iter(rng.permutation(executor.num_blocks).tolist())
    tables = [[next(free) for _ in range(-(-len(p) // executor.block_size))] for p in prompts]
    done, logits = [0] * len(prompts), [np.zeros((0, VOCAB_SIZE), np.float32) for _ in prompts]
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        running = [i for i, prompt in enumerate(prompts) if done[i] < len(prompt)]
        counts = [min(int(rng.integers(1, 40)), len(prompts[i]) - done[i]) for i in running]
        chunks = [prompts[i][done[i] : done[i] + n] for i, n in zip(running, counts, strict=True)]
        tokens = np.concatenate(chunks).astype(np.int32)
        output = executor.execute(
            Batch(
                token_ids=tokens,
                num_new_tokens=np.array(counts, np.int32),
                num_computed_tokens=np.array([done[i] for i in running], np.int32),
                block_tables=[tables[i] for i in running],
                rows=np.arange(len(tokens), dtype=np.int32),
                want_logits=True,
            )
        )
        assert output.logits is not None
        parts = np.split(output.logits, np.cumsum(counts)[:-1])
        for i, n, part in zip(running, counts, parts, strict=True):
            logits[i] = np.concatenate([logits[i], part])
            done[i] += n
    return logits


def test_logits_of_ragged_chunked_batches_are_those_of_transformers(
    reference: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, VOCAB_SIZE, length) for length in LENGTHS]
    config = ExecutorConfig(precision="fp32", kv_cache_precision="fp32", num_threads=1)
    executor = OpenVinoExecutor(open_model(tmp_path), config, lambda _phase, _share: None)
    try:
        expected = expected_logits(reference, prompts)
        for ours, theirs in zip(chunked_logits(executor, prompts, rng), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=3e-4, rtol=3e-4)
    finally:
        executor.close()
