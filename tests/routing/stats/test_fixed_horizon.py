import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headrace.routing.stats.fixed_horizon import holm, two_proportion_z_test, welch_t_test
from headrace.routing.stats.moments import Moments
from headrace.routing.stats.proportions import Rate

values = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=2, max_size=20)
p_values = st.lists(st.floats(0, 1), max_size=8)


def moments_of(values: list[float]) -> Moments:
    moments = Moments()
    for value in values:
        moments.add(value)
    return moments


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's, of constants
@given(values, values)
def test_welch_agrees_with_scipy(one: list[float], other: list[float]) -> None:
    if np.var(one) + np.var(other) < 1e-6:
        return
    expected = stats.ttest_ind(one, other, equal_var=False).pvalue
    assert welch_t_test(moments_of(one), moments_of(other)) == pytest.approx(expected, abs=1e-7)


def test_welch_says_nothing_of_single_values_and_all_of_constants() -> None:
    one, two = moments_of([1.0]), moments_of([2.0, 2.0])
    assert welch_t_test(one, two) == 1
    assert welch_t_test(moments_of([1.0, 1.0]), two) == 0
    assert welch_t_test(two, two) == 1


@given(st.integers(1, 500), st.integers(1, 500), st.data())
def test_the_z_test_is_scipys_chi_squared_test_of_the_table(
    n: int, m: int, data: st.DataObject
) -> None:
    one = Rate(data.draw(st.integers(0, n)), n)
    other = Rate(data.draw(st.integers(0, m)), m)
    table = np.array([[k, n - k] for k, n in (one, other)])
    if (table.sum(0) == 0).any():
        assert two_proportion_z_test(one, other) == 1
        return
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert two_proportion_z_test(one, other) == pytest.approx(expected, abs=1e-9)


def test_rates_of_nothing_do_not_differ() -> None:
    assert two_proportion_z_test(Rate(0, 0), Rate(0, 0)) == 1
    assert two_proportion_z_test(Rate(0, 0), Rate(3, 5)) == 1


def test_holm_gives_the_textbooks_numbers() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(p_values, st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    rejected = set()
    for step, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[i] * (len(p_values) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected


@given(p_values)
def test_holm_lies_between_no_correction_and_bonferronis(p_values: list[float]) -> None:
    for p, adjusted in zip(p_values, holm(p_values), strict=True):
        assert p <= adjusted <= min(1, p * len(p_values))


def test_fixed_tests_err_at_alpha_when_they_look_once() -> None:
    rng = np.random.default_rng(5)
    one, other = rng.normal(size=(2, 1000, 50))
    p = [welch_t_test(moments_of(a), moments_of(b)) for a, b in zip(one, other, strict=True)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.015)
