"""Batches as tests write them, and what an executor answers over many of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Batch, Executor, Output


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def run(executor: Executor, ids: Sequence[int], past: int, table: Sequence[int]) -> Output:
    """One sequence's new tokens, the last one's prediction wanted with logits."""
    last = ints([len(ids) - 1])
    return executor.execute(
        Batch(ints(ids), ints([len(ids)]), ints([past]), [table], last, want_logits=True)
    )


def logits(executor: Executor, ids: Sequence[int], past: int, table: Sequence[int]) -> np.ndarray:
    """The same, as a vector that outlives the next step."""
    output = run(executor, ids, past, table)
    assert output.logits is not None
    row: np.ndarray = output.logits[0].copy()
    return row


def chunked_logits(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    rng: np.random.Generator,
    *,
    longest: int = 40,
    shuffle: bool = True,
) -> list[np.ndarray]:
    """Feed ragged sequences in random chunks over shuffled blocks; all rows of every step.

    Who is in a step is drawn as well, so that sequences meet in every mixture.
    """
    blocks = rng.permutation(executor.num_blocks) if shuffle else np.arange(executor.num_blocks)
    free = iter(blocks.tolist())
    tables = [[next(free) for _ in range(-(-len(p) // executor.block_size))] for p in prompts]
    done = [0] * len(prompts)
    found: list[list[np.ndarray]] = [[] for _ in prompts]
    while waiting := [i for i, prompt in enumerate(prompts) if done[i] < len(prompt)]:
        running = [i for i in waiting if rng.random() < 0.8] or waiting
        rng.shuffle(running)
        counts = [
            min(int(rng.integers(1, longest + 1)), len(prompts[i]) - done[i]) for i in running
        ]
        tokens = [
            token
            for i, count in zip(running, counts, strict=True)
            for token in prompts[i][done[i] : done[i] + count]
        ]
        output = executor.execute(
            Batch(
                token_ids=ints(tokens),
                num_new_tokens=ints(counts),
                num_computed_tokens=ints([done[i] for i in running]),
                block_tables=[tables[i] for i in running],
                rows=np.arange(len(tokens), dtype=np.int32),
                want_logits=True,
            )
        )
        assert output.logits is not None
        np.testing.assert_array_equal(output.token_ids, output.logits.argmax(axis=1))
        parts = np.split(output.logits, np.cumsum(counts)[:-1])
        for i, count, part in zip(running, counts, parts, strict=True):
            found[i].append(part.copy())
            done[i] += count
    return [np.concatenate(parts) for parts in found]
