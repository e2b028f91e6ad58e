import numpy as np

from headrace.engine.logprobs import token_logprobs

LOGITS = np.random.default_rng(1).standard_normal((20, 500)).astype(np.float32) * 4


def _bytes(token_id: int) -> bytes:
    return str(token_id).encode()


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    exact = LOGITS.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    found = token_logprobs(LOGITS, list(range(20)), [3] * 20, _bytes)
    for row, logprob in enumerate(found):
        assert logprob.token == str(row).encode()
        assert abs((logprob.logprob or 0) - exact[row, row]) < 1e-5
        assert [top.token_id for top in logprob.top] == np.argsort(-exact[row])[:3].tolist()
        assert abs(logprob.top[0].logprob - exact[row].max()) < 1e-5


def test_equal_candidates_come_lowest_id_first_and_none_are_given_unasked() -> None:
    logits = np.zeros((2, 500), dtype=np.float32)
    few, none = token_logprobs(logits, [9, 9], [4, 0], _bytes)
    assert [top.token_id for top in few.top] == [0, 1, 2, 3]
    assert none.top == []


def test_a_small_vocabulary_gives_all_it_has() -> None:
    (found,) = token_logprobs(LOGITS[:1, :3], [1], [20], _bytes)
    assert len(found.top) == 3
