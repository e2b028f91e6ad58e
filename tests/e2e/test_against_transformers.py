"""The two real models answer, token for token, what transformers computes from the same file."""

from collections.abc import Callable
from pathlib import Path

import pytest

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
def test_greedy_answers_in_fp32_equal_those_of_transformers(source: str) -> None:
    files = real_model(source)
    prompt_ids = [Tokenizer(files).encode(prompt) for prompt in PROMPTS]
    greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    with LLM(
        str(files.path), precision="fp32", kv_cache_precision="fp32", max_model_len=256
    ) as llm:
        answers = llm.generate(prompt_ids, greedy, show_progress=False)
    likeliest = _predictor(files.path)
    for prompt, ids, answer in zip(PROMPTS, prompt_ids, answers, strict=True):
        ours = list(answer.token_ids)
        # Each token is the likeliest after those before it: together, the greedy answer.
        assert likeliest([*ids, *ours])[len(ids) - 1 : -1] == ours, prompt


def _predictor(path: Path) -> Callable[[list[int]], list[int]]:
    """Transformers' likeliest next token after each token of a text."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )

    def likeliest(ids: list[int]) -> list[int]:
        with torch.inference_mode():
            found: list[int] = model(torch.tensor([ids])).logits[0].argmax(dim=-1).tolist()
        return found

    return likeliest
