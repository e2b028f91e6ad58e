import pytest
from harness.load import Run, Sample
from harness.summary import percentiles, summarize
from hypothesis import given
from hypothesis import strategies as st


def sample(sent: float, arrivals: list[float], tokens: int, prompt: int = 4) -> Sample:
    return Sample(sent, arrivals, prompt, tokens)


def test_percentiles_are_milliseconds_between_the_nearest_ranks() -> None:
    found = percentiles([0.001 * number for number in range(1, 102)])
    assert found.p50 == pytest.approx(51)
    assert found.p99 == pytest.approx(100)


def test_nothing_measured_has_no_percentile() -> None:
    assert percentiles([]).p50 is None


@given(st.lists(st.floats(0, 1e3), min_size=1))
def test_percentiles_lie_within_what_was_measured(seconds: list[float]) -> None:
    found = percentiles(seconds)
    assert found.p50 is not None
    assert found.p99 is not None
    slack = 1e-9 + max(seconds)
    assert min(seconds) * 1e3 - slack <= found.p50 <= found.p99 + slack
    assert found.p99 <= max(seconds) * 1e3 + slack


def test_a_summary_of_one_known_run() -> None:
    run = Run(
        [sample(0.0, [1.0, 1.5, 2.0, 2.5], 4), sample(0.0, [2.0, 2.5, 3.0, 3.5], 4)], 0.0, 4.0
    )
    found = summarize([run], prompt_tokens=4, output_tokens=4)
    assert found.tokens_per_second == pytest.approx(2.0)
    assert found.ttft.p50 == pytest.approx(1500)
    assert found.inter_token.p50 == pytest.approx(500)
    assert found.time_per_output_token.p50 == pytest.approx(500)
    assert (found.num_errors, found.wrong_counts) == (0, 0)


def test_tokens_that_come_after_a_user_has_stopped_do_not_count_as_throughput() -> None:
    run = Run([sample(0.0, [1.0, 2.0], 4), sample(0.0, [1.0, 3.0], 4)], 0.0, 2.0)
    found = summarize([run], prompt_tokens=4, output_tokens=4)
    assert found.tokens_per_second == pytest.approx((4 + 2) / 2)


def test_an_output_of_several_tokens_counts_as_all_of_them() -> None:
    run = Run([sample(0.0, [1.0, 2.0], 10)], 0.0, 2.0)
    assert summarize([run], prompt_tokens=4, output_tokens=10).tokens_per_second == 5


def test_rounds_are_pooled_by_time_and_their_spread_is_kept() -> None:
    slow = Run([sample(0.0, [4.0], 4)], 0.0, 4.0)
    fast = Run([sample(0.0, [1.0], 4)], 0.0, 1.0)
    found = summarize([slow, fast], prompt_tokens=4, output_tokens=4)
    assert found.tokens_per_second == pytest.approx(8 / 5)
    assert found.spread == (1.0, 4.0)


@pytest.mark.parametrize(("prompt", "tokens"), [(5, 4), (4, 3), (4, 5)])
def test_a_server_that_counts_other_tokens_is_noticed(prompt: int, tokens: int) -> None:
    run = Run([sample(0.0, [1.0, 2.0], tokens, prompt)], 0.0, 2.0)
    assert summarize([run], prompt_tokens=4, output_tokens=4).wrong_counts == 1


def test_a_failed_request_is_an_error_and_nothing_else() -> None:
    failed = Sample(0.0, [1.0], error="HTTP 503: queue full")
    run = Run([failed, sample(0.0, [], 4), sample(0.0, [1.0, 2.0], 4)], 0.0, 2.0)
    found = summarize([run], prompt_tokens=4, output_tokens=4)
    assert (found.num_requests, found.num_errors) == (3, 2)
    assert found.first_error == "HTTP 503: queue full"
    assert found.tokens_per_second == 2
    assert found.ttft.p99 == pytest.approx(1000)
