import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headrace.routing.stats.beta_binomial import log_ratio


@given(st.integers(0, 60), st.floats(0.001, 0.999), st.floats(0.1, 50), st.floats(0.1, 50))
def test_evidence_against_the_truth_is_1_on_average(n: int, p: float, a: float, b: float) -> None:
    total = sum(stats.binom.pmf(k, n, p) * math.exp(log_ratio(k, n, p, a, b)) for k in range(n + 1))
    assert total == pytest.approx(1)


@given(st.integers(1, 60), st.floats(0.001, 0.999), st.data())
def test_it_is_scipys_beta_binomial_over_its_binomial(
    n: int, p: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n))
    expected = stats.betabinom.logpmf(k, n, 0.5, 0.5) - stats.binom.logpmf(k, n, p)
    assert log_ratio(k, n, p) == pytest.approx(expected, abs=1e-7)
