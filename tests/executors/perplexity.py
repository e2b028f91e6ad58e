"""How well an executor's model predicts a real text, against another executor's."""

import pydoc_data.topics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Batch, Executor
from headrace.modelfiles.model import ModelFiles

TOPICS = ("execmodel", "import", "formatstrings", "with", "customization", "objects")
"""Chapters of Python's reference manual: prose and code, on every machine that has Python."""

WINDOW = 512  # tokens, each read without what lies before it
CHUNK = 128  # logits of so many tokens at a time


@dataclass(frozen=True, slots=True)
class Difference:
    """How one executor's log-likelihoods of the same tokens differ from another's."""

    perplexity: float  # relative: 0.01 is one per cent worse
    standard_error: float  # of that


def windows(files: ModelFiles, count: int) -> list[list[int]]:
    text = "\n\n".join(pydoc_data.topics.topics[topic] for topic in TOPICS)
    ids = files.tokenizer.encode(text, add_special_tokens=False).ids
    parts = [ids[start : start + WINDOW] for start in range(0, count * WINDOW, WINDOW)]
    assert len(parts[-1]) == WINDOW, "the text is too short"
    return parts


def log_likelihoods(executor: Executor, ids: list[int]) -> NDArray[np.float64]:
    """Of every token but the first, given those before it in the window."""
    table = list(range(-(-len(ids) // executor.block_size)))
    found = []
    for start in range(0, len(ids), CHUNK):
        new = ids[start : start + CHUNK]
        rows = np.arange(len(new), dtype=np.int32)
        output = executor.execute(
            Batch(
                token_ids=np.array(new, np.int32),
                num_new_tokens=np.array([len(new)], np.int32),
                num_computed_tokens=np.array([start], np.int32),
                block_tables=[table],
                rows=rows,
                want_logits=True,
            )
        )
        assert output.logits is not None
        following = ids[start + 1 : start + CHUNK + 1]
        found.append(_log_softmax_at(output.logits[: len(following)], following))
    return np.concatenate(found)


def difference(measured: NDArray[np.float64], reference: NDArray[np.float64]) -> Difference:
    gaps = reference - measured
    mean = float(np.expm1(gaps.mean()))
    return Difference(mean, float(gaps.std() / np.sqrt(len(gaps))))


def _log_softmax_at(logits: NDArray[np.float32], ids: list[int]) -> NDArray[np.float64]:
    largest = logits.max(axis=1)
    total = np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(ids)), ids]
    return chosen.astype(np.float64) - largest - np.log(total)
