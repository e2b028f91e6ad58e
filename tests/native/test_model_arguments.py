"""Nothing wrong gets into a model: each mistake is told by the argument's name."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from headrace_native import Model, StepResult, Weights
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, POSITIONS = 64, 2, 1, 32, 96, 100, 256
SHAPE: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": HIDDEN,
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": DIM,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position": POSITIONS,
    "norm_eps": 1e-5,
    "attention_scale": DIM**-0.5,
    "embedding_scale": 1.0,
    "activation": "silu",
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "post_norms": False,
    "windows": [0],
    "ropes": [0],
    "cache": "bf16",
}
OPTIONS: dict[str, Any] = {
    "num_blocks": 16,
    "max_tokens": 64,
    "max_seqs": 4,
    "max_rows": 8,
    "num_threads": 2,
}


def make_weights() -> Weights:
    matrices = {
        "layers.0.qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        "layers.0.o": (HIDDEN, HEADS * DIM),
        "layers.0.gate_up": (2 * INNER, HIDDEN),
        "layers.0.down": (HIDDEN, INNER),
        "head": (VOCAB, HIDDEN),
    }
    entries = [(name, "matrix", "bf16", n, k) for name, (n, k) in matrices.items()]
    entries += [(f"layers.0.norm{i}", "vector", "", 1, HIDDEN) for i in (1, 2)]
    entries += [("norm", "vector", "", 1, HIDDEN), ("embedding", "table", "", VOCAB, HIDDEN)]
    weights = Weights.create(None, "tag", entries, num_threads=1)
    rng = np.random.default_rng(0)
    for name, _, _, n, k in entries:
        scale = 1.0 if "norm" in name else 0.2
        values = rng.normal(scale=scale, size=(n, k)).astype(np.float32)
        half = n // 2
        if name.endswith("gate_up"):
            parts = [("F32", part.view(np.uint8), half) for part in (values[:half], values[half:])]
            weights.put(name, parts, interleaved=True)
        else:
            weights.put(name, [("F32", values.view(np.uint8), n)])
    weights.finish()
    return weights


WEIGHTS = make_weights()


def make_model(**changes: Any) -> Model:
    model = Model(WEIGHTS, **(SHAPE | OPTIONS | changes))
    angles = np.arange(POSITIONS)[:, None] / 10 ** np.linspace(0, 3, DIM // 2)
    model.set_rope(0, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model()


def ints(values: Any) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def step_arguments() -> dict[str, Any]:
    """Two sequences: three new tokens and one."""
    return {
        "token_ids": ints([5, 6, 7, 8]),
        "num_new": ints([3, 1]),
        "num_computed": ints([0, 0]),
        "block_tables": ints([[0, 1], [2, 3]]),
        "rows": ints([2, 3]),
        "want": "greedy",
    }


def step(model: Model, **changes: Any) -> StepResult:
    return model.step(**(step_arguments() | changes))


def sampling(num_rows: int = 2, edits: object = None, **changes: Any) -> SimpleNamespace:
    """Temperature 1 for every row, but for the changes."""
    columns = {
        "temperatures": np.ones(num_rows),
        "top_p": np.ones(num_rows),
        "min_p": np.zeros(num_rows),
        "uniforms": np.full(num_rows, 0.5),
        "top_k": np.zeros(num_rows, np.int32),
        "num_top": np.full(num_rows, -1, np.int32),
        "targets": np.full(num_rows, -1, np.int32),
    }
    return SimpleNamespace(**(columns | changes), edits=edits)


def test_what_was_not_asked_for_is_none(model: Model) -> None:
    greedy, logits, drawn, scored = (
        step(model),
        step(model, want="logits"),
        step(model, sampling=sampling()),
        step(model, sampling=sampling(num_top=ints([3, -1]))),
    )
    assert greedy.greedy.shape == greedy.max.shape == (2,)
    assert greedy.log_sum_exp is greedy.logits is greedy.token_ids is greedy.logprobs is None
    assert logits.logits is not None
    assert logits.logits.shape == (2, VOCAB)
    assert logits.token_ids is logits.top_ids is logits.top_logprobs is None
    assert drawn.token_ids is not None
    assert drawn.token_ids.shape == (2,)
    assert drawn.logits is drawn.logprobs is drawn.top_ids is None
    assert scored.top_ids is not None
    assert scored.top_ids.shape == (2, 3)
    assert scored.top_ids[1].tolist() == [-1] * 3
    assert np.array_equal(greedy.greedy, scored.greedy)
    assert scored.top_ids[0, 0] == greedy.greedy[0]


@pytest.mark.parametrize("top", [1, 7, VOCAB])
def test_the_largest_logits_come_first_and_the_lowest_id_on_a_tie(model: Model, top: int) -> None:
    result = step(model, want="logits", sampling=sampling(num_top=ints([top, top])))
    assert result.logits is not None
    assert result.log_sum_exp is not None
    expected = np.lexsort((np.tile(np.arange(VOCAB), (2, 1)), -result.logits))[:, :top]
    assert result.top_ids is not None
    assert np.array_equal(result.top_ids, expected)
    logprobs = result.logits - result.log_sum_exp[:, None]
    assert np.array_equal(result.top_logprobs, np.take_along_axis(logprobs, expected, axis=1))
    exact = np.log(np.exp(result.logits.astype(np.float64)).sum(axis=1))
    assert np.allclose(result.log_sum_exp, exact, rtol=1e-5)
    assert np.array_equal(result.max, result.logits.max(axis=1))


def test_a_masked_token_is_neither_drawn_nor_named(model: Model) -> None:
    masks = np.zeros((2, 4), np.uint32)
    masks[0, 1] = 1 << 3 | 1 << 4
    masks[1, 2] = 1 << 31
    wanted = sampling(num_top=ints([3, 3]), uniforms=np.array([0.999999, 0.3]))
    result = step(model, masks=masks, sampling=wanted, want="logits")
    assert result.token_ids is not None
    assert result.logprobs is not None
    assert result.top_ids is not None
    assert result.logits is not None
    assert result.token_ids.tolist() == [36, 95]
    assert sorted(result.top_ids[0, :2].tolist()) == [35, 36]
    assert np.isfinite(result.logits).sum(axis=1).tolist() == [2, 1]
    assert result.logprobs[1] == 0


def test_sampling_gives_the_same_bits_with_any_number_of_threads() -> None:
    rows = 8
    random = np.random.default_rng(1)
    wanted = sampling(
        rows,
        temperatures=random.choice([0.0, 0.7, 1.5], rows),
        uniforms=random.random(rows),
        top_p=random.choice([1.0, 0.8], rows),
        top_k=ints(random.choice([0, 12], rows)),
        num_top=ints([5] * rows),
    )
    prompt = {
        "token_ids": ints(range(rows)),
        "num_new": ints([rows]),
        "num_computed": ints([0]),
        "block_tables": ints([[0]]),
        "rows": ints(range(rows)),
        "sampling": wanted,
    }
    first, *others = (step(make_model(num_threads=count), **prompt) for count in (1, 2, 3))
    for other in others:
        assert np.array_equal(first.token_ids, other.token_ids)
        assert np.array_equal(first.logprobs, other.logprobs)
        assert np.array_equal(first.top_logprobs, other.top_logprobs)


def edits(*edited: tuple[int, float, float]) -> SimpleNamespace:
    """All in the first of two rows."""
    ids, repetitions, terms = zip(*edited, strict=True)
    return SimpleNamespace(
        begins=ints([0, len(edited), len(edited)]),
        token_ids=ints(ids),
        repetitions=np.array(repetitions, np.float32),
        terms=np.array(terms, np.float32),
    )


def test_a_row_that_edits_leave_no_token_says_so_and_keeps_its_logits(model: Model) -> None:
    nothing = edits(*((token, 1, -np.inf) for token in range(VOCAB)))
    plain = step(model, want="logits")
    result = step(model, want="logits", sampling=sampling(edits=nothing))
    assert result.token_ids is not None
    assert result.token_ids[0] == -1
    assert result.token_ids[1] >= 0
    assert np.array_equal(result.logits, plain.logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("limits", [{}, {"top_k": ints([5, 5])}, {"top_p": np.full(2, 0.9)}])
def test_a_row_of_which_edits_make_a_logit_nan_says_so_and_keeps_its_logits(
    model: Model, temperature: float, limits: dict[str, Any]
) -> None:
    plain = step(model, want="logits", sampling=sampling(num_top=ints([0, 0])))
    assert plain.logits is not None
    # Divided by next to nothing a logit is infinite, and infinity less infinity is no number.
    for token in (int(plain.logits[0].argmax()), int((plain.logits[0] > 0).argmax())):
        for edited in (
            edits((token, 1e-44, -np.inf)),
            edits((token, 1e-44, 0), (token, 1, -np.inf), (token, 2, 0)),
            edits((token, 1e-44, -np.inf), ((token + 1) % VOCAB, 1, -5)),
        ):
            wanted = sampling(
                edits=edited,
                num_top=ints([0, 0]),
                temperatures=np.full(2, temperature),
                **limits,
            )
            result = step(model, want="logits", sampling=wanted)
            assert result.token_ids is not None
            assert result.token_ids[0] == -1
            assert result.token_ids[1] >= 0
            assert np.array_equal(result.logits, plain.logits)


WRONG_SAMPLINGS: list[tuple[str, Any]] = [
    ("temperatures", np.array([1.0, -1.0])),
    ("temperatures", np.array([1.0, np.nan])),
    ("temperatures", np.array([1.0, np.inf])),
    ("temperatures", np.ones(3)),
    ("temperatures", np.ones(2, np.float32)),
    ("top_p", np.array([1.0, 0.0])),
    ("top_p", np.array([1.0, 1.1])),
    ("min_p", np.array([0.0, -0.1])),
    ("min_p", np.array([0.0, 1.1])),
    ("uniforms", np.array([0.0, 1.0])),
    ("top_k", ints([0, -1])),
    ("num_top", ints([0, -2])),
    ("num_top", ints([0, VOCAB + 1])),
    ("num_top", ints([0, 2**31 - 1])),
    ("targets", ints([0, VOCAB])),
    ("targets", ints([0, -2])),
    ("edits", edits((VOCAB, 1, 0))),
    ("edits", edits((-1, 1, 0))),
    ("edits", edits((1, 0, 0))),
    ("edits", edits((1, np.nan, 0))),
    ("edits", edits((1, 1, np.inf))),
    ("edits", edits((1, 1, np.nan))),
    ("edits", SimpleNamespace(**(vars(edits((1, 1, 0))) | {"begins": ints([0, 2, 1])}))),
    ("edits", SimpleNamespace(**(vars(edits((1, 1, 0))) | {"begins": ints([1, 1, 1])}))),
    ("edits", SimpleNamespace(**(vars(edits((1, 1, 0))) | {"begins": ints([0, 0, -1])}))),
    ("edits", SimpleNamespace(**(vars(edits((1, 1, 0))) | {"begins": ints([0, 1])}))),
    ("edits", SimpleNamespace(**(vars(edits((1, 1, 0))) | {"terms": np.zeros(2, np.float32)}))),
]


@pytest.mark.parametrize(("name", "value"), WRONG_SAMPLINGS, ids=str)
def test_a_wrong_column_of_a_sampling_is_told_by_name(model: Model, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"sampling.{name}"):
        step(model, sampling=sampling(**{name: value}))


def test_a_mask_leaves_only_the_tokens_whose_bits_are_set(model: Model) -> None:
    masks = np.zeros((2, 4), np.uint32)
    masks[0, 1] = 1 << 3
    masks[1, 2] = 1 << 31
    result = step(model, masks=masks)
    assert result.greedy.tolist() == [35, 95]


def test_a_profile_tells_of_the_steps_since_the_last_one() -> None:
    model = make_model()
    step(model)
    step(model)
    profile = model.profile()
    assert profile.pop("steps") == 2
    total = profile.pop("total")
    assert 0 < sum(profile.values()) <= total * 1.01
    assert model.profile()["steps"] == 0


def test_arrays_of_a_result_outlive_the_model() -> None:
    model = make_model()
    result = step(model, want="logits")
    logits = result.logits
    assert logits is not None
    expected = logits.copy()
    del model, result
    assert np.array_equal(logits, expected)


def test_a_model_keeps_its_weights() -> None:
    global WEIGHTS  # noqa: PLW0603 - the only name of them goes for a while
    model = make_model()
    expected = step(model).greedy
    WEIGHTS = make_weights()
    assert np.array_equal(step(model).greedy, expected)


WRONG_STEPS: list[tuple[str, Any, str]] = [
    ("token_ids", np.array([5, 6, 7, 8]), "needs dtype int32"),
    ("token_ids", [5, 6, 7, 8], "needs an array of int32"),
    ("token_ids", ints([[5, 6, 7, 8]]), "needs shape"),
    ("token_ids", ints([5, 0, 6, 0, 7, 0, 8, 0])[::2], "needs a C-contiguous array"),
    ("token_ids", ints([5, 6, 7, VOCAB]), ""),
    ("token_ids", ints([5, 6, 7, -1]), ""),
    ("num_new", ints([3, 2]), ""),
    ("num_new", ints([4, 0]), ""),
    ("num_new", ints([5, -1]), ""),
    ("num_computed", ints([0]), "needs shape"),
    ("num_computed", ints([0, -1]), ""),
    ("num_computed", ints([POSITIONS, 0]), ""),
    ("num_computed", ints([2**31 - 1, 0]), ""),
    ("block_tables", ints([0, 1]), "needs shape"),
    ("block_tables", ints([[0, 1]]), "needs shape"),
    ("block_tables", ints([[0, 1], [16, 3]]), ""),
    ("block_tables", ints([[0, 1], [-1, 3]]), ""),
    ("block_tables", np.zeros((2, 0), np.int32), ""),
    ("rows", ints([3, 2]), ""),
    ("rows", ints([2, 2]), ""),
    ("rows", ints([2, 4]), ""),
    ("rows", ints([-1, 2]), ""),
    ("rows", ints([0, 1, 2, 3, 4]), ""),
    ("want", "best", "is not one of"),
    ("masks", np.zeros((2, 3), np.uint32), "needs shape"),
    ("masks", np.zeros((1, 4), np.uint32), "needs shape"),
    ("masks", np.zeros((2, 4), np.int32), "needs dtype uint32"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_STEPS)
def test_a_wrong_argument_of_a_step_is_told_by_name(
    model: Model, name: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        step(model, **{name: value})


def test_more_than_a_model_has_room_for_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="token"):
        step(
            model,
            token_ids=np.zeros(65, np.int32),
            num_new=ints([65]),
            num_computed=ints([0]),
            block_tables=ints([[0, 1, 2]]),
            rows=ints([64]),
        )
    with pytest.raises(ValueError, match=r"seq|num_new"):
        step(
            model,
            token_ids=np.zeros(5, np.int32),
            num_new=np.ones(5, np.int32),
            num_computed=np.zeros(5, np.int32),
            block_tables=np.arange(5, dtype=np.int32)[:, None],
            rows=ints([4]),
        )
    with pytest.raises(ValueError, match="rows"):
        step(
            model,
            token_ids=np.zeros(9, np.int32),
            num_new=ints([9]),
            num_computed=ints([0]),
            block_tables=ints([[0]]),
            rows=np.arange(9, dtype=np.int32),
        )


@given(data=st.data())
def test_any_numbers_are_computed_or_refused_and_leave_the_model_whole(
    model: Model, data: Any
) -> None:
    expected = step(model).greedy
    arguments = step_arguments()
    for name in data.draw(st.lists(st.sampled_from(list(arguments)[:5]), min_size=1, max_size=3)):
        array = arguments[name] = arguments[name].copy()
        index = data.draw(st.integers(0, array.size - 1))
        array.reshape(-1)[index] = data.draw(
            st.one_of(st.integers(-3, 40), st.integers(-(2**31), 2**31 - 1))
        )
    try:
        model.step(**arguments)
    except ValueError as error:
        assert any(name in str(error) for name in arguments)  # noqa: PT017 - it may pass as well
    assert np.array_equal(step(model).greedy, expected)


@pytest.mark.parametrize("name", list(SHAPE | OPTIONS))
def test_every_keyword_of_a_model_is_needed(name: str) -> None:
    arguments = SHAPE | OPTIONS
    del arguments[name]
    with pytest.raises(TypeError, match=f"missing keyword argument '{name}'"):
        Model(WEIGHTS, **arguments)


WRONG_SHAPES: list[tuple[str, Any]] = [
    ("num_layers", 0),
    ("hidden_size", -1),
    ("hidden_size", 2**40),
    ("num_heads", 0),
    ("num_kv_heads", 3),
    ("head_dim", 31),
    ("intermediate_size", 0),
    ("vocab_size", 0),
    ("max_position", 0),
    ("norm_eps", float("nan")),
    ("attention_scale", float("inf")),
    ("activation", "relu"),
    ("windows", [0, 0]),
    ("windows", [-1]),
    ("ropes", []),
    ("ropes", [-1]),
    ("cache", "fp8"),
    ("num_blocks", 0),
    ("max_tokens", 0),
    ("max_seqs", 0),
    ("max_rows", -1),
    ("num_threads", 0),
]


@pytest.mark.parametrize(("name", "value"), WRONG_SHAPES)
def test_a_wrong_shape_or_option_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Model(WEIGHTS, **(SHAPE | OPTIONS | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_layers", "1"), ("num_layers", 1.0), ("qk_norm", 1), ("norm_eps", "x"), ("windows", 0)],
)
def test_a_wrong_type_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        Model(WEIGHTS, **(SHAPE | OPTIONS | {name: value}))


def test_a_keyword_that_is_not_known_is_refused() -> None:
    arguments: dict[str, Any] = SHAPE | OPTIONS | {"speed": 11}
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        Model(WEIGHTS, **arguments)


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"head|vocab_size|embedding"):
        Model(WEIGHTS, **(SHAPE | OPTIONS | {"vocab_size": VOCAB + 1}))


def set_rope(model: Model, table: int, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
    model.set_rope(table, np.zeros(shape, dtype), np.zeros((POSITIONS, DIM // 2), np.float32))


WRONG_ROPES: list[tuple[Callable[[Model], None], str]] = [
    (lambda model: set_rope(model, 1, (POSITIONS, DIM // 2)), "table"),
    (lambda model: set_rope(model, -1, (POSITIONS, DIM // 2)), "table"),
    (lambda model: set_rope(model, 0, (POSITIONS, DIM)), "cos: needs shape"),
    (lambda model: set_rope(model, 0, (POSITIONS, DIM // 2), np.float64), "cos: needs dtype"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_ROPES)
def test_a_wrong_table_of_angles_is_told_by_name(
    model: Model, call: Callable[[Model], None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(model)


def test_block_bytes_counts_every_layer_and_both_kinds_of_cache() -> None:
    one = Model.block_bytes(**SHAPE)
    three = Model.block_bytes(**(SHAPE | {"num_layers": 3, "windows": [0] * 3, "ropes": [0] * 3}))
    assert one >= 2 * 32 * KV_HEADS * DIM * 2
    assert three == 3 * one
    assert Model.block_bytes(**(SHAPE | {"cache": "i8"})) < one
    with pytest.raises(ValueError, match="isa"):
        Model.block_bytes(**SHAPE, isa="altivec")
    with pytest.raises(ValueError, match="num_kv_heads"):
        Model.block_bytes(**(SHAPE | {"num_kv_heads": 0}))


def test_a_second_thread_is_told_that_the_model_is_in_use() -> None:
    model = make_model(max_tokens=4096, num_blocks=128, num_threads=1)
    many = np.zeros(POSITIONS, np.int32)
    told = threading.Event()
    over = threading.Event()
    outcomes: list[str] = []

    def run() -> None:
        while not told.is_set() and not over.is_set():
            try:
                model.step(
                    many, ints([POSITIONS]), ints([0]), ints([range(8)]), ints([0]), want="greedy"
                )
            except RuntimeError as error:
                outcomes.append(str(error))
                told.set()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    told.wait(60)
    over.set()
    for thread in threads:
        thread.join()
    assert "in use by another thread" in outcomes[0]
    step(model)
