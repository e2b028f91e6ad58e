"""The two real models answer, token for token, what transformers computes from the same file.

In bf16 a token may be another one only where transformers finds both as good as equally likely.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executors.conftest import require_native_kernels
from gguf_in_transformers import quick_gguf_reader
from headrace import LLM, SamplingParams
from headrace.engine.tokenizer import Tokenizer
from real_models import GEMMA3, SMOLLM2, real_model

pytestmark = [pytest.mark.slow, pytest.mark.reference, pytest.mark.timeout(600)]

NUM_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n",
    "The three laws of motion are",
    "Dear Sir or Madam,\n\n",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "SELECT name, age FROM users WHERE",
    "In 1969, humans first",
    "My favourite recipe for pancakes:",
    "import numpy as np\n\nx = np",
    "The difference between a virus and a bacterium is",
    "Il était une fois",
    "Die Hauptstadt von Deutschland ist",
    "Q: What is the largest planet?\nA:",
    "To be, or not to be,",
    "The mitochondria is the",
    "A haiku about rivers:\n",
    '{"name": "Ada", "born":',
    "The quick brown fox",
]


@pytest.mark.parametrize("source", [SMOLLM2, GEMMA3])
@pytest.mark.parametrize(
    ("executor", "precision", "margin"), [("openvino", "fp32", 0.0), ("native", "bf16", 0.25)]
)
def test_greedy_answers_are_those_of_transformers(
    source: str, executor: Any, precision: Any, margin: float
) -> None:
    if executor == "native":
        require_native_kernels()
    files = real_model(source)
    prompt_ids = [Tokenizer(files).encode(prompt) for prompt in PROMPTS]
    greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    with LLM(
        str(files.path),
        executor=executor,
        precision=precision,
        kv_cache_precision=precision,
        max_model_len=256,
    ) as llm:
        answers = llm.generate(prompt_ids, greedy, show_progress=False)
    shortfalls = _judge(files.path)
    for prompt, ids, answer in zip(PROMPTS, prompt_ids, answers, strict=True):
        # Each token is the likeliest after those before it: together, the greedy answer.
        assert max(shortfalls(ids, list(answer.token_ids))) <= margin, prompt


@cache  # reading a GGUF file takes transformers longer than judging
def _judge(path: Path) -> Callable[[list[int], list[int]], list[float]]:
    """By how much each token of an answer has a lower logit than transformers' likeliest."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with quick_gguf_reader():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )

    def shortfalls(prompt: list[int], answer: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        chosen = logits[torch.arange(len(answer)), torch.tensor(answer)]
        gaps: list[float] = (logits.max(dim=-1).values - chosen).tolist()
        return gaps

    return shortfalls
