"""A step's inputs: what is written, and what is refused before the plugin could crash on it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.executors.executor import Batch
from headrace.executors.openvino.step import Limits, step_inputs

LIMITS = Limits(vocab_size=100, num_blocks=8, block_size=4, max_model_len=16)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def a_batch(**changes: Any) -> Batch:
    """Three tokens of a sequence that has five, and one of a sequence that has none."""
    batch = Batch(
        token_ids=ints(7, 8, 9, 5),
        num_new_tokens=ints(3, 1),
        num_computed_tokens=ints(5, 0),
        block_tables=[[6, 1], [3]],
        rows=ints(2, 3),
    )
    return replace(batch, **changes)


def test_inputs_describe_the_ragged_batch() -> None:
    inputs = {name: np.asarray(v).tolist() for name, v in step_inputs(a_batch(), LIMITS).items()}
    assert inputs == {
        "token_ids": [7, 8, 9, 5],
        "positions": [5, 6, 7, 0],
        "rows": [2, 3],
        "past_lens": [5, 0],
        "subsequence_begins": [0, 3, 4],
        "block_indices": [6, 1, 3],
        "block_indices_begins": [0, 2, 3],
        "max_context_len": 8,
    }


def test_no_rows_are_a_batch_too() -> None:
    assert len(step_inputs(a_batch(rows=ints()), LIMITS)["rows"]) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"token_ids": ints(7, 8, 100, 5)}, "token id 100 does not exist: there are 100"),
        ({"token_ids": ints(7, -1, 9, 5)}, "token id -1 does not exist"),
        ({"block_tables": [[6, 8], [3]]}, "block 8 does not exist: there are 8"),
        ({"block_tables": [[-1, 1], [3]]}, "block -1 does not exist"),
        ({"block_tables": [[6], [3]]}, "sequence 0 has 8 tokens, but its block table holds 4"),
        ({"block_tables": [[6, 1]]}, "2 sequences has 2 counts of computed tokens and 1 block"),
        ({"num_computed_tokens": ints(14, 0)}, "position 16 is beyond 16 tokens"),
        ({"num_computed_tokens": ints(-1, 0)}, "num_computed_tokens"),
        ({"num_new_tokens": ints(4, 0)}, "num_new_tokens"),
        ({"num_new_tokens": ints(3, 2)}, "4 token ids, but num_new_tokens is"),
        ({"rows": ints(2, 4)}, "must rise within 4 tokens"),
        ({"rows": ints(-1, 2)}, "must rise"),
        ({"rows": ints(2, 2)}, "must rise"),
    ],
)
def test_what_does_not_exist_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        step_inputs(a_batch(**changes), LIMITS)


def test_an_empty_batch_is_refused() -> None:
    empty = Batch(ints(), ints(), ints(), [], ints())
    with pytest.raises(ValueError, match="0 sequences"):
        step_inputs(empty, LIMITS)
