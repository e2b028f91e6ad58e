"""Who runs next, seen without any model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.block_pool import BlockPool, root_digest
from headrace.engine.config import EngineConfig
from headrace.engine.sampling_state import SamplingState
from headrace.engine.scheduler import MAX_SCORED_TOKENS, Scheduler, Step
from headrace.engine.sequence import Sequence
from headrace.generation import SamplingParams

GREEDY = SamplingState(SamplingParams(temperature=0), seed=0, index=0, prompt_ids=(), stop_ids=())


def sequence(name: str, num_tokens: int, first: int = 0, *, scored: bool = False) -> Sequence:
    tokens = [first] * num_tokens
    return Sequence(name, 0, tokens, GREEDY, root_digest(""), scores_prompt=scored)


def scheduler(num_blocks: int = 1000, block_size: int = 4, **limits: int) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, block_size), EngineConfig(**limits))


def advance(sched: Scheduler) -> dict[str, int]:
    """Run a step; every sequence that caught up gets one more token."""
    step = sched.schedule()
    sched.update(step)
    sched.check()
    for seq in step.sequences:
        if seq.has_caught_up:
            seq.token_ids.append(7)
    return named(step)


def named(step: Step) -> dict[str, int]:
    return {
        seq.request_id: count
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True)
    }


def test_no_step_exceeds_the_budget_and_prompts_leave_room_for_decoding() -> None:
    sched = scheduler(max_num_batched_tokens=100)
    sched.add(sequence("a", 10, 1))
    assert advance(sched) == {"a": 10}
    sched.add(sequence("b", 1000, 2))
    assert advance(sched) == {"a": 1, "b": 50}


def test_several_prompts_advance_in_one_step() -> None:
    sched = scheduler(max_num_batched_tokens=100)
    sched.add(sequence("long", 1000, 1))
    sched.add(sequence("longer", 2000, 2))
    assert advance(sched) == {"long": 50, "longer": 50}


def test_equal_prompts_are_finished_one_after_another() -> None:
    sched = scheduler(max_num_batched_tokens=128)
    for number in range(4):
        sched.add(sequence(str(number), 64, number))
    assert advance(sched) == {"0": 64, "1": 64}


def test_when_tokens_do_not_suffice_running_sequences_take_turns() -> None:
    sched = scheduler(max_num_batched_tokens=8)
    for number in range(8):
        sched.add(sequence(str(number), 1, number))
    while sched.waiting:
        advance(sched)
    small = scheduler(max_num_batched_tokens=3)
    small.running, small.pool = sched.running, sched.pool
    served = [advance(small) for _ in range(8)]
    assert {sum(name in step for step in served) for name in map(str, range(8))} == {3}


def test_a_running_prompt_advances_however_many_decode() -> None:
    sched = scheduler(max_num_batched_tokens=8, max_num_seqs=9)
    for number in range(8):
        sched.add(sequence(str(number), 1, number))
    while sched.waiting:
        advance(sched)
    sched.add(sequence("prompt", 20, 9))
    assert advance(sched)["prompt"] == 2


@given(st.integers(1, 9), st.integers(1, 6), st.lists(st.integers(2, 12), min_size=1, max_size=4))
def test_every_prompt_is_computed_while_others_decode(
    budget: int, num_decoding: int, prompts: list[int]
) -> None:
    sched = scheduler(max_num_batched_tokens=budget)
    for number in range(num_decoding):
        sched.add(sequence(f"decoding {number}", 1, number))
    for _ in range(4 * num_decoding):
        advance(sched)
    added = [sequence(str(n), length, 100 + n) for n, length in enumerate(prompts)]
    for seq in added:
        sched.add(seq)
    for _ in range(4 * sum(prompts) + 4 * len(prompts)):
        assert sum(advance(sched).values()) <= budget
    assert all(len(seq.token_ids) > seq.num_prompt_tokens for seq in added)


def test_scored_prompts_share_a_bound_on_their_rows() -> None:
    sched = scheduler(max_num_batched_tokens=512)
    for name in ("a", "b"):
        sched.add(sequence(name, 300, scored=True))
    assert sum(advance(sched).values()) == MAX_SCORED_TOKENS


def test_admission_leaves_a_little_memory_for_those_who_run() -> None:
    sched = scheduler(num_blocks=10, max_num_batched_tokens=100)
    sched.add(sequence("a", 16, 1))
    sched.add(sequence("b", 24, 2))
    advance(sched)
    assert [seq.request_id for seq in sched.running] == ["a"]


def test_a_preempted_sequence_returns_before_those_that_never_ran() -> None:
    sched = scheduler(num_blocks=6, block_size=1, max_num_batched_tokens=100)
    for name in ("old", "young"):
        sched.add(sequence(name, 2, ord(name[0])))
    advance(sched)
    sched.add(sequence("new", 1, 3))
    while not sched.num_preemptions:
        advance(sched)
    assert [seq.request_id for seq in sched.waiting] == ["young", "new"]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_blocks_become_shareable_only_once_computed(prefix_caching: bool) -> None:  # noqa: FBT001
    sched = scheduler(max_num_batched_tokens=8, prefix_caching=prefix_caching)
    first, second = sequence("a", 16), sequence("b", 16)
    sched.add(first)
    sched.schedule()
    assert sched.pool.lookup(sched._chain(first, 4)) == []
    sched.update(Step([first], [8]))
    assert len(sched.pool.lookup(sched._chain(first, 4))) == (2 if prefix_caching else 0)
    sched.add(second)
    advance(sched)
    assert second.num_cached_tokens in ((8, None) if prefix_caching else (0, None))
