"""The same bits for a row, in whatever company, chunks, blocks and number of threads."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.batches import chunked_logits, logits
from executors.conftest import NATIVE
from executors.quantised import Quantised
from executors.tiny import CONFIG, tiny_model
from headrace.executors.executor import Executor
from headrace.modelfiles.config import ModelConfig

pytestmark = pytest.mark.usefixtures("native_kernels")

LONG = replace(CONFIG, max_position_embeddings=1024)
MODELS: dict[str, ModelConfig] = {
    "plain": LONG,
    "window": replace(LONG, layer_windows=(20, 300)),
    "norms and biases": replace(
        LONG,
        post_norms=True,
        qk_norm=True,
        qkv_bias=True,
        mlp_bias=True,
        output_bias=True,
        layer_windows=(290, 0),
    ),
}
CASES = [
    ("plain", "bf16", "bf16"),
    ("plain", "w8a16", "int8"),
    ("plain", "w8a8", "bf16"),
    ("window", "w8a16", "bf16"),
    ("window", "w4a16", "bf16"),
    ("window", "w8a8", "int8"),
    ("norms and biases", "bf16", "int8"),
    ("norms and biases", "w8a16", "bf16"),
]


class Case:
    """One model on one, two and three threads, and each prompt's answer when alone and whole."""

    def __init__(self, model: str, precision: str, kv_cache: str) -> None:
        kinds = {"down_proj": "Q8_0", "o_proj": "Q4_0", "proj": "Q4_1"}
        files = tiny_model(MODELS[model], Quantised(MODELS[model], kinds))
        self.executors: list[Executor] = [
            NATIVE.create(
                files,
                precision=precision,
                kv_cache_precision=kv_cache,
                num_threads=threads,
                kv_cache_memory=32 << 20,
                max_num_batched_tokens=1024,
            )
            for threads in (1, 2, 3)
        ]
        self.alone = cache(self._alone)

    def _alone(self, prompt: tuple[int, ...]) -> np.ndarray:
        """Whole, in the first blocks, on one thread."""
        one = np.random.default_rng(0)
        (rows,) = chunked_logits(self.executors[0], [prompt], one, longest=1, shuffle=False)
        last = logits(self.executors[0], prompt, 0, list(range(-(-len(prompt) // 32))))
        np.testing.assert_array_equal(last, rows[-1])
        return rows


@pytest.fixture(params=CASES, ids=" ".join, scope="module")
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    case = Case(*request.param)
    yield case
    for executor in case.executors:
        executor.close()


def prompt(number: int, length: int) -> tuple[int, ...]:
    drawn: Any = np.random.default_rng(number).integers(0, CONFIG.vocab_size, length)
    return tuple(drawn.tolist())


@given(
    mixture=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 31, 32, 33, 64, 65, 130, 257, 300])),
        min_size=1,
        max_size=12,
    ),
    longest=st.sampled_from([1, 3, 16, 33, 80]),
    seed=st.integers(0, 1 << 30),
    threads=st.integers(1, 3),
)
@settings(max_examples=12)
def test_mixtures_chunks_blocks_and_threads_change_no_bit(
    case: Case, mixture: list[tuple[int, int]], longest: int, seed: int, threads: int
) -> None:
    prompts = [prompt(*drawn) for drawn in mixture]
    found = chunked_logits(
        case.executors[threads - 1], prompts, np.random.default_rng(seed), longest=longest
    )
    for rows, asked in zip(found, prompts, strict=True):
        np.testing.assert_array_equal(rows, case.alone(asked))


def test_many_chunks_of_keys_change_no_bit(case: Case) -> None:
    prompts = [prompt(9, 900), prompt(8, 513), prompt(7, 20)]
    for seed, executor in enumerate(case.executors):
        found = chunked_logits(executor, prompts, np.random.default_rng(seed), longest=300)
        for rows, asked in zip(found, prompts, strict=True):
            np.testing.assert_array_equal(rows, case.alone(asked))
