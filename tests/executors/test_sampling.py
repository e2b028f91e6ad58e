"""What executors draw from logits, against plain definitions in double precision.

Edits dictate the logits, so that both executors sample from the very same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from executors.batches import ints
from executors.conftest import Kind
from executors.tiny import CONFIG, tiny_model
from headrace.executors.executor import Batch, Edits, Executor, Output, Sampling

VOCAB = 700  # not a whole number of panels or chunks
FILES = tiny_model(replace(CONFIG, vocab_size=VOCAB))
TOKENS = 250
PROMPT = np.random.default_rng(2).integers(0, VOCAB, TOKENS).tolist()
LOGITS = (np.random.default_rng(5).standard_normal((20, VOCAB)) * 3).astype(np.float32)


@pytest.fixture(scope="module")
def wide(kind: Kind) -> Iterator[Executor]:
    executor = kind.create(FILES, num_threads=2)
    yield executor
    executor.close()


def columns(num_rows: int, **changes: Any) -> Sampling:
    """Temperature 1 and no limits, but for the changes; a number stands for a whole column."""
    plain = {
        "temperatures": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "uniforms": 0.5,
        "top_k": 0,
        "num_top": -1,
        "targets": -1,
    }
    kinds = {"top_k": np.int32, "num_top": np.int32, "targets": np.int32}
    edits = changes.pop("edits", None)
    made = {
        name: np.ascontiguousarray(np.broadcast_to(value, num_rows), kinds.get(name, np.float64))
        for name, value in (plain | changes).items()
    }
    return Sampling(**made, edits=edits)


def dictate(logits: NDArray[np.float32]) -> Edits:
    """Edits that make these logits of any: all is lost to a large term that is taken back."""
    possible = [np.flatnonzero(np.isfinite(row)) for row in logits]
    impossible = [np.flatnonzero(~np.isfinite(row)) for row in logits]
    ids, terms = list[np.ndarray](), list[np.ndarray]()
    for row, some, none in zip(logits, possible, impossible, strict=True):
        ids += [some, some, some, none]
        terms += [np.full(len(some), term) for term in (2.0**40, -(2.0**40))]
        terms += [row[some], np.full(len(none), -np.inf)]
    begins = np.cumsum(
        [0, *(3 * len(p) + len(i) for p, i in zip(possible, impossible, strict=True))]
    )
    joined = np.concatenate(terms).astype(np.float32)
    return Edits(
        begins.astype(np.int32),
        np.concatenate(ids).astype(np.int32),
        np.ones(len(joined), np.float32),
        joined,
    )


def run(executor: Executor, sampling: Sampling, *, want_logits: bool = False) -> Output:
    """Sample after the first tokens of a prompt, one after another."""
    count = len(sampling.targets)
    table = list(range(-(-count // 32)))
    rows = np.arange(count, dtype=np.int32)
    return executor.execute(
        Batch(ints(PROMPT[:count]), ints([count]), ints([0]), [table], rows, sampling, want_logits)
    )


def draw(executor: Executor, logits: NDArray[np.float32], **changes: Any) -> list[int]:
    """A token of each row of logits."""
    drawn = run(executor, columns(len(logits), edits=dictate(logits), **changes))
    tokens: list[int] = drawn.token_ids.tolist()
    return tokens


def kept(
    logits: NDArray[np.float32], temperature: float, top_p: float, min_p: float, top_k: int
) -> dict[int, float]:
    """The tokens that min_p, then top_k, then top_p leave, by id, with their shares."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-scaled, kind="stable")
    order = order[weights[order] >= min_p]
    order = order[: top_k or None]
    if top_p < 1:
        shares = np.cumsum(weights[order]) / weights[order].sum()
        order = order[: int((shares < top_p).sum()) + 1]
    order = np.sort(order)
    return dict(zip(order.tolist(), (weights[order] / weights[order].sum()).tolist(), strict=True))


def expected(shares: dict[int, float], uniform: float, error: float = 1e-5) -> set[int]:
    """The token at the number, and those that are there within the error."""
    ids, ends = list(shares), np.cumsum(list(shares.values()))
    first, last = np.searchsorted(ends, [uniform - error, uniform + error], side="right")
    return set(ids[first : last + 1])


@settings(max_examples=25, deadline=None)
@given(
    row=st.integers(0, len(LOGITS) - 1),
    temperature=st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 0.97, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.03, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 300, 699, 700, 2**31 - 1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_token_is_the_one_at_the_number_among_those_that_are_left(  # noqa: PLR0917 - drawn by name
    wide: Executor,
    row: int,
    temperature: float,
    top_p: float,
    min_p: float,
    top_k: int,
    seed: int,
) -> None:
    uniforms = np.random.default_rng(seed).random(12)
    uniforms[:2] = 0.0, 1 - 2.0**-53
    drawn = draw(
        wide,
        np.tile(LOGITS[row], (12, 1)),
        temperatures=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        uniforms=uniforms,
    )
    shares = kept(LOGITS[row], temperature, top_p, min_p, top_k)
    for token_id, uniform in zip(drawn, uniforms.tolist(), strict=True):
        assert token_id in expected(shares, uniform)


@settings(max_examples=25, deadline=None)
@given(
    levels=st.lists(st.integers(-4, 4), min_size=VOCAB, max_size=VOCAB)
    | st.integers(0, 2**31).map(
        lambda seed: np.random.default_rng(seed).integers(-2, 3, VOCAB).tolist()
    ),
    top_p=st.sampled_from([0.999, 0.9, 0.3, 1e-12]),
    top_k=st.sampled_from([0, 1, 5, 33, 400]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_of_equal_logits_at_an_edge_the_lowest_ids_are_kept(
    wide: Executor, levels: Sequence[int], top_p: float, top_k: int, uniform: float
) -> None:
    logits = np.array([levels], np.float32)
    (token_id,) = draw(wide, logits, top_p=top_p, top_k=top_k, uniforms=uniform)
    nearby = [kept(logits[0], 1.0, p, 0.0, top_k) for p in (top_p * (1 - 1e-6), top_p)]
    assert any(token_id in expected(shares, uniform) for shares in nearby)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"temperatures": 0.6},
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.02},
        {"temperatures": 1.4, "min_p": 0.01, "top_k": 60, "top_p": 0.8},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(wide: Executor, limits: dict[str, float]) -> None:
    """Pearson's chi-square over some thousand draws of fixed seed, at its 1 in 10,000 bound."""
    logits = LOGITS[3].copy()
    logits[40:] = -np.inf
    random, found = np.random.default_rng(11), np.zeros(VOCAB)
    for _ in range(10):
        drawn = draw(wide, np.tile(logits, (TOKENS, 1)), uniforms=random.random(TOKENS), **limits)
        found += np.bincount(drawn, minlength=VOCAB)
    names = {"temperature": "temperatures", "top_p": "top_p", "min_p": "min_p", "top_k": "top_k"}
    off = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    shares = kept(logits, **{name: limits.get(key, off[name]) for name, key in names.items()})
    assert found.sum() == found[list(shares)].sum()
    counts = found.sum() * np.array(list(shares.values()))
    common = counts >= 5
    observed = np.append(found[list(shares)][common], found[list(shares)][~common].sum())
    wanted = np.append(counts[common], counts[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    # Wilson and Hilferty's cube: 3.72 standard deviations are 1 in 10,000.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound


def test_a_row_draws_the_same_in_any_company(wide: Executor) -> None:
    random = np.random.default_rng(7)
    num_rows = len(LOGITS)
    options: dict[str, Any] = {
        "temperatures": random.choice([0.0, 0.5, 1.0], num_rows),
        "top_p": random.choice([1.0, 0.9, 0.4], num_rows),
        "min_p": random.choice([0.0, 0.05], num_rows),
        "top_k": random.choice([0, 5, 100], num_rows),
        "uniforms": random.random(num_rows),
        "num_top": random.choice([-1, 0, 3], num_rows),
    }
    together = draw(wide, LOGITS, **options)
    for order in (random.permutation(num_rows), random.permutation(num_rows)[:7], [4]):
        mixed = {name: values[order] for name, values in options.items()}
        assert draw(wide, LOGITS[order], **mixed) == [together[row] for row in order]


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-6])
def test_a_tiny_temperature_takes_the_best_token(wide: Executor, temperature: float) -> None:
    best = LOGITS.argmax(axis=1).tolist()
    for limits in ({}, {"top_p": 0.5}, {"top_k": 9}, {"min_p": 0.1}):
        assert draw(wide, LOGITS, temperatures=temperature, uniforms=0.999, **limits) == best


def test_a_huge_temperature_takes_every_token(wide: Executor) -> None:
    uniforms = (np.arange(200) + 0.5) / 200
    drawn = draw(wide, np.tile(LOGITS[0], (200, 1)), temperatures=2.0**31, uniforms=uniforms)
    assert np.abs(np.array(drawn) - uniforms * VOCAB).max() < 2


def test_temperature_0_takes_the_lowest_of_the_likeliest_after_edits(wide: Executor) -> None:
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, [90, 400]] = 3.0
    logits[1, [699]] = 1e-30
    assert draw(wide, logits, temperatures=0.0) == [90, 699]


def test_a_row_without_a_possible_token_or_with_an_infinite_logit_is_refused(
    wide: Executor,
) -> None:
    for temperature in (0.0, 1.0):
        nothing = np.full((1, VOCAB), -np.inf, np.float32)
        with pytest.raises(ValueError, match=r"token|finite"):
            draw(wide, nothing, temperatures=temperature)
    huge = Edits(ints([0, 2]), ints([5, 5]), *np.array([[1, 1], [3e38, 3e38]], np.float32))
    with pytest.raises(ValueError, match=r"finite|infinite"), np.errstate(over="ignore"):
        run(wide, columns(1, edits=huge))
    assert draw(wide, LOGITS[:1], temperatures=0.0) == [int(LOGITS[0].argmax())]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_an_edit_makes_a_logit_nan_is_refused(
    wide: Executor, temperature: float
) -> None:
    plain = run(wide, columns(1, temperatures=0.0), want_logits=True)
    assert plain.logits is not None
    for token in (int(plain.token_ids[0]), int(np.flatnonzero(plain.logits[0] > 0)[-1])):
        endless = Edits(ints([0, 1]), ints([token]), *np.array([[1e-44], [-np.inf]], np.float32))
        with pytest.raises(ValueError, match="finite"), np.errstate(all="ignore"):
            run(wide, columns(1, edits=endless, temperatures=temperature))


def test_one_possible_token_is_taken_whatever_the_limits(wide: Executor) -> None:
    logits = np.full((4, VOCAB), -np.inf, np.float32)
    logits[:, 123] = -20.0
    limits = {"top_p": [1.0, 0.1, 1.0, 1.0], "top_k": [0, 0, 3, 0], "min_p": [0, 0, 0, 0.9]}
    assert draw(wide, logits, uniforms=[0.0, 0.3, 0.6, 0.99], **limits) == [123] * 4


def test_logprobs_are_those_of_the_models_own_distribution(kind: Kind, wide: Executor) -> None:
    num_top = [0, -1, 5, 20, VOCAB]
    edited = columns(5, num_top=num_top, temperatures=0.5, edits=dictate(LOGITS[:5]))
    plain = run(wide, columns(5), want_logits=True)
    assert plain.logprobs is None
    assert plain.logits is not None
    logits = plain.logits.copy()
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    output = run(wide, edited, want_logits=True)
    assert output.logits is not None
    assert np.abs(output.logits - logits).max() <= (2e-5 if kind.name == "openvino" else 0)
    assert output.logprobs is not None
    chosen, top_ids, top = output.logprobs.chosen, output.logprobs.top_ids, output.logprobs.top
    assert top_ids.shape == top.shape == (5, VOCAB)
    assert (top_ids[0] < 0).all()
    for row in (0, 2, 3, 4):
        count = num_top[row]
        assert abs(chosen[row] - exact[row, output.token_ids[row]]) < 1e-4
        ids = top_ids[row, :count]
        assert (top_ids[row, count:] < 0).all()
        assert ids.tolist() == np.argsort(-output.logits[row], kind="stable")[:count].tolist()
        assert np.abs(top[row, :count] - exact[row, ids]).max(initial=0) < 1e-4


def test_a_target_is_taken_with_its_logprob(wide: Executor) -> None:
    targets = [5, -1, 699]
    output = run(wide, columns(3, targets=targets, num_top=0, temperatures=0), want_logits=True)
    assert output.logits is not None
    assert output.logprobs is not None
    assert output.token_ids.tolist() == [5, int(output.logits[1].argmax()), 699]
    exact = output.logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    assert np.abs(output.logprobs.chosen - exact[range(3), output.token_ids]).max() < 1e-5


def test_edits_apply_in_order_and_a_repetition_penalty_by_sign(wide: Executor) -> None:
    base = dictate(np.array([[0.0] * VOCAB] * 2, np.float32))

    def best(row: Sequence[tuple[int, float, float]]) -> int:
        ids, repetitions, terms = zip(*row, strict=True)
        first, last = base.begins[1:]
        edits = Edits(
            ints([0, first + len(row), last + len(row)]),
            np.concatenate([base.token_ids[:first], ints(ids), base.token_ids[first:]]),
            np.concatenate(
                [base.repetitions[:first], repetitions, base.repetitions[first:]]
            ).astype(np.float32),
            np.concatenate([base.terms[:first], terms, base.terms[first:]]).astype(np.float32),
        )
        tokens = run(wide, columns(2, temperatures=0.0, edits=edits)).token_ids.tolist()
        assert tokens[1] == 0  # the next row is nobody else's business
        return int(tokens[0])

    assert best([(3, 1, 4.0), (8, 1, 2.5)]) == 3
    assert best([(3, 1, 4.0), (8, 1, 2.5), (3, 2.0, 0.0)]) == 8  # 4 / 2
    assert best([(3, 2.0, 4.0), (8, 1, 2.5)]) == 3  # 0 / 2 + 4
    assert best([(3, 1, 4.0), (3, 2.0, 1.0), (8, 1, 2.5)]) == 3  # 4 / 2 + 1
    everything = [(token, 1, -4.0) for token in range(VOCAB)]
    assert best([*everything, (3, 1, 2.0), *[(t, 2.0, 0.0) for t in range(2, VOCAB)]]) == 0
    assert best([*everything, (3, 1, 2.0), (3, 2.5, 0.0), (9, 1, 0.5)]) == 9  # -2 * 2.5
    assert best([(0, 1, -np.inf), (0, 1, 9.0), (0, 2.0, 1.0)]) == 1
