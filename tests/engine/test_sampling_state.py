"""What requests ask of sampling, and the numpy sampler against plain definitions."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.engine.random_numbers import uniforms
from headrace.engine.sampling_state import SamplingState, sampling
from headrace.executors.sampling.sampler import Sampler
from headrace.generation import SamplingParams

VOCAB_SIZE = 1000
RNG = np.random.default_rng(5)
LOGITS = (RNG.standard_normal((40, VOCAB_SIZE)) * 2).astype(np.float32)


def state(seed: int = 0, **options: object) -> SamplingState:
    params = SamplingParams(**options)
    return SamplingState(params, seed=seed, index=0, prompt_ids=[1, 2, 3], stop_ids=[5, 6])


def observe(one: SamplingState, token_id: int) -> None:
    if one.edits is not None:
        one.edits.add(token_id)


def draw(
    states: Sequence[SamplingState], positions: Sequence[int], logits: NDArray[np.float32]
) -> list[int]:
    vocab_size = logits.shape[1]
    wanted = sampling(states, positions, [-1] * len(states), vocab_size)
    chosen: list[int] = Sampler(vocab_size).sample(wanted, logits).tolist()
    return chosen


def reference(logits: NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    """The tokens that min_p, then top_k, then top_p leave, from a full sort, with their shares."""
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    order = order[weights[order] >= params.min_p]
    if params.top_k:
        order = order[: params.top_k]
    shares = np.cumsum(weights[order]) / weights[order].sum()
    if params.top_p < 1:
        order = order[: int((shares < params.top_p).sum()) + 1]
    shares = weights[order] / weights[order].sum()
    return dict(zip(order.tolist(), shares.tolist(), strict=True))


@settings(max_examples=60)
@given(
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 3, 40, 999, 5000]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    row=st.integers(0, len(LOGITS) - 1),
)
def test_only_tokens_that_the_limits_leave_are_drawn_and_the_likely_ones_are(
    temperature: float, top_p: float, top_k: int, min_p: float, row: int
) -> None:
    options = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    shares = reference(LOGITS[row], SamplingParams(**options))
    count = 200
    states = [state(seed, **options) for seed in range(count)]
    drawn = draw(states, [0] * count, np.tile(LOGITS[row], (count, 1)))
    assert set(drawn) <= set(shares)
    assert set(drawn) >= {token_id for token_id, share in shares.items() if share > 0.12}


def test_equal_logits_at_the_edge_of_the_nucleus_are_kept_by_lowest_id() -> None:
    logits = np.zeros((300, VOCAB_SIZE), dtype=np.float32)
    states = [state(seed, top_p=0.004) for seed in range(300)]
    assert set(draw(states, [0] * 300, logits)) == {0, 1, 2, 3}


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 10}, {"min_p": 0.02}])
def test_draws_follow_the_distribution(options: dict[str, float]) -> None:
    logits = LOGITS[:1, :50] * 0.7
    support = sorted(reference(logits[0], SamplingParams(**options)))
    weights = np.exp(logits[0][support].astype(np.float64))
    count = 20_000
    states = [state(3, **options)] * count
    drawn = draw(states, list(range(count)), np.tile(logits, (count, 1)))
    found = np.bincount(drawn, minlength=50)[support] / count
    assert np.abs(found - weights / weights.sum()).max() < 0.012  # over 3 standard deviations


@settings(max_examples=40)
@given(data=st.data())
def test_a_row_draws_the_same_token_in_any_batch(data: st.DataObject) -> None:
    options = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.7, 1.3]),
            "top_p": st.sampled_from([1.0, 0.9]),
            "top_k": st.sampled_from([0, 7]),
            "min_p": st.sampled_from([0.0, 0.02]),
            "repetition_penalty": st.sampled_from([1.0, 1.2]),
            "frequency_penalty": st.sampled_from([0.0, 0.4]),
            "min_tokens": st.sampled_from([0, 20]),
        }
    )
    states = [state(seed, **data.draw(options)) for seed in range(data.draw(st.integers(1, 20)))]
    for one in states:
        for token_id in data.draw(st.lists(st.integers(0, 9), max_size=4)):
            observe(one, token_id)
    positions = [seed % 4 for seed in range(len(states))]
    logits = LOGITS[: len(states)]
    together = draw(states, positions, logits)
    for row, one in enumerate(states):
        at = slice(row, row + 1)
        assert draw([one], positions[at], logits[at]) == [together[row]]


def test_a_seed_gives_other_tokens_at_other_positions_and_indexes() -> None:
    params = SamplingParams()
    states = [
        SamplingState(params, seed=7, index=index, prompt_ids=[], stop_ids=())
        for index in range(20)
    ]
    logits = np.tile(LOGITS[:1], (20, 1))
    by_index = draw(states, [0] * 20, logits)
    by_position = draw(states[:1] * 20, list(range(20)), logits)
    assert len(set(by_index)) > 5
    assert len(set(by_position)) > 5


def test_seeds_of_any_size_and_sign_are_taken() -> None:
    keys = {state(seed).key for seed in (-1, 0, 1, 2**63, 2**70 + 3)}
    assert len(keys) == 5


def test_random_numbers_are_even_and_below_one() -> None:
    numbers = uniforms(np.full(50_000, 9, dtype=np.uint64), np.arange(50_000, dtype=np.uint64))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / 5000 - 1).max() < 0.08


def test_penalties_have_the_meaning_they_have_in_vllm() -> None:
    logits = np.zeros((1, VOCAB_SIZE), dtype=np.float32)
    logits[0, [1, 7, 8, 9]] = [4.0, 5.0, 4.5, 3.0]

    def greedy(**options: float) -> int:
        one = state(temperature=0.0, **options)
        for token_id in (7, 7, 8):
            observe(one, token_id)
        return draw([one], [3], logits)[0]

    assert greedy() == 7
    assert greedy(frequency_penalty=0.3) == 7  # 4.4 for token 7, 4.2 for token 8
    assert greedy(frequency_penalty=0.4) == 7  # 4.2, 4.1
    assert greedy(frequency_penalty=0.6) == 1  # 3.8, 3.9, and 4 for one only in the prompt
    assert greedy(presence_penalty=0.9) == 7
    assert greedy(presence_penalty=1.1) == 1
    assert greedy(repetition_penalty=2.0) == 9  # the prompt's token is halved too


def test_repetition_makes_negative_logits_more_negative() -> None:
    logits = np.full((1, VOCAB_SIZE), -9, dtype=np.float32)
    logits[0, [1, 9]] = [-1.0, -1.5]
    one = state(temperature=0.0, repetition_penalty=2.0)
    assert draw([one], [0], logits) == [9]


def test_a_bias_can_force_and_forbid_tokens() -> None:
    forced = state(logit_bias={17: 100.0})
    best = int(LOGITS[0].argmax())
    forbidden = state(temperature=0.0, logit_bias={best: -100.0})
    drawn = draw([forced, forbidden], [0, 0], LOGITS[[0, 0]])
    assert drawn[0] == 17
    assert drawn[1] == int(np.argsort(-LOGITS[0])[1])


def test_tokens_that_end_the_answer_wait_for_min_tokens() -> None:
    logits = np.zeros((1, VOCAB_SIZE), dtype=np.float32)
    logits[0, [5, 6, 8]] = [9.0, 8.0, 7.0]
    one = state(temperature=0.0, min_tokens=2)
    found = [draw([one], [position], logits)[0] for position in (0, 1, 2)]
    assert found == [8, 8, 5]


def test_a_tiny_temperature_takes_the_best_token() -> None:
    drawn = draw([state(temperature=1e-40)] * 3, [0] * 3, LOGITS[:3])
    assert drawn == LOGITS[:3].argmax(axis=-1).tolist()


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(ValueError, match="not finite"):
        draw([state()], [0], np.full((1, VOCAB_SIZE), np.nan, np.float32))


def test_a_vocabulary_of_any_width_is_sampled_without_its_padding() -> None:
    logits = np.full((50, 3), -5, dtype=np.float32)
    states = [state(seed, temperature=2.0) for seed in range(50)]
    assert set(draw(states, [0] * 50, logits)) == {0, 1, 2}


def test_a_prompts_penalised_tokens_and_a_bias_meet_in_vllms_order() -> None:
    logits = np.zeros((1, VOCAB_SIZE), dtype=np.float32)
    logits[0, [2, 9]] = [1.0, 2.4]
    one = state(temperature=0.0, repetition_penalty=2.0, logit_bias={2: 4.0})
    assert draw([one], [0], logits) == [2]  # (1 + 4) / 2 is more than 2.4, 1 / 2 + 4 would be too
    two = state(temperature=0.0, repetition_penalty=2.0, logit_bias={2: 3.0})
    assert draw([two], [0], logits) == [9]  # (1 + 3) / 2 is less, 1 / 2 + 3 would not be


def test_a_scored_prompt_repeats_its_edits_for_no_row_but_the_one_that_chooses() -> None:
    one = state(logprobs=0, logit_bias=dict.fromkeys(range(900), 1.0))
    count = 2048
    scored = sampling([one] * count, [0] * count, [7] * (count - 1) + [-1], VOCAB_SIZE)
    assert scored.edits is not None
    assert len(scored.edits.token_ids) == len(scored.edits.terms) == 900
    assert scored.edits.begins.tolist() == [0] * count + [900]
    assert sampling([one] * 2, [0] * 2, [7, 8], VOCAB_SIZE).edits is None


def test_a_row_without_edits_between_rows_with_them_is_left_as_it_is() -> None:
    best = LOGITS[:3].argmax(axis=-1).tolist()
    states = [
        state(temperature=0.0, logit_bias={best[0]: -100.0}),
        state(temperature=0.0, logprobs=1),
        state(temperature=0.0, logit_bias={best[2]: -100.0}),
    ]
    first, second, third = draw(states, [0] * 3, LOGITS[:3])
    assert (first != best[0], second, third != best[2]) == (True, best[1], True)
