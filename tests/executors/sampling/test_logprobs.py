import numpy as np

from headrace.executors.sampling.logprobs import logprobs_of

LOGITS = np.random.default_rng(1).standard_normal((20, 500)).astype(np.float32) * 4


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    exact = LOGITS.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    found = logprobs_of(LOGITS, ints(*range(20)), ints(*[3] * 20))
    assert found is not None
    assert np.abs(found.chosen - exact[range(20), range(20)]).max() < 1e-5
    expected = np.argsort(-exact, axis=1)[:, :3]
    assert found.top_ids.tolist() == expected.tolist()
    assert np.abs(found.top - np.take_along_axis(exact, expected, 1)).max() < 1e-5


def test_equal_candidates_come_lowest_id_first_and_none_are_given_unasked() -> None:
    logits = np.zeros((3, 500), dtype=np.float32)
    found = logprobs_of(logits, ints(9, 9, 9), ints(4, 0, -1))
    assert found is not None
    assert found.top_ids.tolist() == [[0, 1, 2, 3], [-1] * 4, [-1] * 4]
    assert logprobs_of(logits, ints(9, 9, 9), ints(-1, -1, -1)) is None
