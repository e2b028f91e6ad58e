import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.rollouts.shadow import Answer, Shadow, first_difference


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [("abc", "abc", None), ("", "", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0)],
)
def test_texts_differ_where_they_first_do(one: str, other: str, at: int | None) -> None:
    assert first_difference(one, other) == first_difference(other, one) == at


@given(st.text(), st.text())
def test_what_is_before_the_first_difference_is_the_same(one: str, other: str) -> None:
    at = first_difference(one, other)
    assert (at is None) == (one == other)
    if at is not None:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


def test_only_greedy_answers_are_compared_word_by_word() -> None:
    shadow = Shadow()
    shadow.compare(Answer("abc", 3, 1.0), Answer("abc", 3, 2.0), is_greedy=True)
    shadow.compare(Answer("abc", 3, 2.0), Answer("abX", 5, 4.0), is_greedy=True)
    shadow.compare(Answer("abc", None, 3.0), Answer("X", 1, 6.0), is_greedy=False)
    assert (shadow.num_mirrored, shadow.num_greedy, shadow.num_equal) == (3, 2, 1)
    assert shadow.first_difference.mean == 2.0
    assert (shadow.stable_latency.mean, shadow.candidate_latency.mean) == (2.0, 4.0)
    assert (shadow.stable_tokens.mean, shadow.candidate_tokens.mean) == (3.0, 4.0)
