"""What every executor does alike: what it takes, gives, and refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog

from executors.batches import chunked_logits, ints, logits, run
from executors.conftest import Create, Kind
from executors.tiny import CONFIG, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.cpu import machine
from headrace.executors.executor import Batch, Executor
from headrace.executors.select import create_executor

PROMPT = list(range(1, 41))


def batch(**changes: Any) -> Batch:
    """Three tokens of a sequence that has five, and one of a sequence that has none."""
    good = Batch(
        token_ids=ints([7, 8, 9, 5]),
        num_new_tokens=ints([3, 1]),
        num_computed_tokens=ints([5, 0]),
        block_tables=[[6], [3]],
        rows=ints([2, 3]),
    )
    return replace(good, **changes)


def close(kind: Kind, ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether they differ by no more than the order of a sum makes a difference."""
    return bool(np.abs(ours - theirs).max() <= (2e-5 if kind.name == "openvino" else 0))


def test_it_says_what_it_runs(kind: Kind, executor: Executor) -> None:
    assert executor.name.partition("-")[0] == kind.name
    assert executor.precision == kind.precision
    assert executor.kv_cache_precision == kind.kv_cache_precision
    assert executor.block_size == 32
    assert executor.vocab_size == CONFIG.vocab_size
    assert executor.max_model_len == CONFIG.max_position_embeddings


def test_greedy_is_the_lowest_of_the_likeliest(executor: Executor) -> None:
    output = run(executor, PROMPT, 0, [0, 1])
    assert output.logits is not None
    assert output.logits.shape == (1, CONFIG.vocab_size)
    assert output.logits.dtype == np.float32
    assert output.token_ids.dtype == np.int32
    assert output.token_ids[0] == np.flatnonzero(output.logits[0] == output.logits[0].max())[0]


def test_logits_are_given_only_when_wanted(executor: Executor) -> None:
    wanted = run(executor, PROMPT, 0, [0, 1])
    output = executor.execute(Batch(ints(PROMPT), ints([40]), ints([0]), [[0, 1]], ints([39])))
    assert output.logits is None
    assert output.token_ids.tolist() == wanted.token_ids.tolist()


def test_a_chunk_without_rows_only_fills_the_cache(kind: Kind, executor: Executor) -> None:
    whole = logits(executor, PROMPT, 0, [0, 1])
    first = executor.execute(Batch(ints(PROMPT[:20]), ints([20]), ints([0]), [[4, 3]], ints([])))
    assert first.token_ids.shape == (0,)
    assert close(kind, logits(executor, PROMPT[20:], 20, [4, 3]), whole)


def test_a_batch_gives_each_sequence_what_it_gets_alone(kind: Kind, executor: Executor) -> None:
    prompts = [PROMPT[:33], PROMPT[5:20], PROMPT[3:4]]
    tables = [[2, 0], [5], [7]]
    alone = [logits(executor, p, 0, table) for p, table in zip(prompts, tables, strict=True)]
    lengths = [len(prompt) for prompt in prompts]
    together = executor.execute(
        Batch(
            token_ids=ints([token for prompt in prompts for token in prompt]),
            num_new_tokens=ints(lengths),
            num_computed_tokens=ints([0, 0, 0]),
            block_tables=tables,
            rows=(np.cumsum(lengths) - 1).astype(np.int32),
            want_logits=True,
        )
    )
    assert together.logits is not None
    assert close(kind, together.logits, np.stack(alone))


def test_ragged_chunks_in_any_mixture_give_what_whole_prompts_give(
    kind: Kind, executor: Executor
) -> None:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, CONFIG.vocab_size, n).tolist() for n in (1, 31, 32, 33, 64, 97)]
    last = [rows[-1] for rows in chunked_logits(executor, prompts, rng)]
    table = list(range(4))
    whole = [logits(executor, prompt, 0, table[: -(-len(prompt) // 32)]) for prompt in prompts]
    assert close(kind, np.stack(last), np.stack(whole))


def test_a_block_written_for_one_sequence_serves_another(kind: Kind, executor: Executor) -> None:
    start, mine, yours = PROMPT[:32], [50, 51, 52], [60, 61]
    run(executor, start + mine, 0, [8, 9])
    shared = logits(executor, yours, 32, [8, 10])
    assert close(kind, shared, logits(executor, start + yours, 0, [11, 12]))
    assert close(
        kind, logits(executor, [53], 35, [8, 9]), logits(executor, [*start, *mine, 53], 0, [13, 14])
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": ints([7, 8, CONFIG.vocab_size, 5])},
        {"token_ids": ints([7, -1, 9, 5])},
        {"block_tables": [[6], [1 << 20]]},
        {"block_tables": [[6], [-1]]},
        {"block_tables": [[6]]},
        {"block_tables": [[], [3]]},
        {"num_computed_tokens": ints([30, 0])},
        {"num_computed_tokens": ints([-1, 0])},
        {"num_computed_tokens": ints([CONFIG.max_position_embeddings, 0]),
         "block_tables": [[6] * 9, [3]]},
        {"num_computed_tokens": ints([5])},
        {"num_new_tokens": ints([4, 0])},
        {"num_new_tokens": ints([3, 2])},
        {"num_new_tokens": ints([5, -1])},
        {"rows": ints([2, 4])},
        {"rows": ints([-1, 2])},
        {"rows": ints([2, 2])},
        {"rows": ints([3, 2])},
        {"token_ids": ints([]), "num_new_tokens": ints([]), "num_computed_tokens": ints([]),
         "block_tables": [], "rows": ints([])},
    ],
    ids=str,
)  # fmt: skip
def test_a_batch_of_what_does_not_exist_is_refused_and_changes_nothing(
    kind: Kind, executor: Executor, changes: dict[str, Any]
) -> None:
    before = logits(executor, PROMPT, 0, [0, 1])
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        executor.execute(batch(**changes))
    assert close(kind, logits(executor, PROMPT[39:], 39, [0, 1]), before)


def test_kv_cache_memory_gives_the_number_of_blocks(create: Create) -> None:
    one = create(kv_cache_memory=1 << 20, max_num_seqs=1)
    with pytest.raises(ConfigurationError, match="kv_cache_memory is 1 bytes") as error:
        create(kv_cache_memory=1)
    assert error.value.param == "kv_cache_memory"
    block = int(str(error.value).split()[-1])
    assert one.num_blocks == CONFIG.max_position_embeddings // 32
    five = create(kv_cache_memory=5 * block + block // 2)
    assert (five.num_blocks, five.max_model_len) == (5, 5 * 32)


def test_memory_too_short_for_a_context_is_refused(
    kind: Kind, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(machine(), available_memory=100_000)
    monkeypatch.setattr(f"headrace.executors.{kind.name}.executor.machine", lambda: here)
    with pytest.raises(ConfigurationError, match=r"holds a context of \d+ tokens"):
        create()


def test_a_context_that_memory_shortens_is_told(create: Create) -> None:
    with structlog.testing.capture_logs() as lines:
        executor = create(kv_cache_memory=100_000)
    (line,) = [line for line in lines if line["event"] == "executor.context_shortened"]
    assert line["model_len"] == CONFIG.max_position_embeddings
    assert line["max_model_len"] == executor.max_model_len == executor.num_blocks * 32


def test_a_length_that_the_cache_cannot_hold_is_refused(create: Create) -> None:
    with pytest.raises(ConfigurationError, match="max_model_len is 250, but kv_cache_memory holds"):
        create(kv_cache_memory=60_000, max_model_len=250)


def test_a_length_beyond_the_models_is_refused(create: Create) -> None:
    with pytest.raises(ConfigurationError, match="max_model_len is 257, but the model was made"):
        create(max_model_len=257)


def test_a_shorter_length_is_kept(create: Create) -> None:
    executor = create(max_model_len=50)
    assert executor.max_model_len == 50
    run(executor, PROMPT, 0, [0, 1])
    with pytest.raises(ValueError, match="position"):
        run(executor, PROMPT[:11], 40, [0, 1])


def test_loading_reports_its_phases_in_order(kind: Kind) -> None:
    seen: list[tuple[str, float]] = []
    create_executor(tiny_model(), kind.config(), lambda *step: seen.append(step)).close()
    phases = list(dict.fromkeys(phase for phase, _ in seen))
    expected = {"openvino": ["reading", "compiling", "warming"], "native": ["packing", "warming"]}
    assert phases == expected[kind.name]
    for phase in phases:
        shares = [share for name, share in seen if name == phase]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
