"""What is measured of answers whose tokens or usage nobody told."""

import pytest

from headrace.api.meter import Meter
from headrace.generation import Chunk, Timing, Usage
from headrace.telemetry.metrics import Metrics

TIMING = Timing(None, 0.1, 0.2, None)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1")


def meter(metrics: Metrics, num_choices: int = 1) -> Meter:
    return Meter(metrics, "chat@1", arrived=0.0, num_choices=num_choices)


def last(index: int = 0, usage: Usage | None = None, timing: Timing = TIMING) -> Chunk:
    return Chunk(index, "", [], finish_reason="stop", usage=usage, timing=timing)


def test_text_without_tokens_is_timed_and_not_counted(metrics: Metrics) -> None:
    measured = meter(metrics)
    for text in ("a", "b", "c"):
        measured.observe(Chunk(0, text, []))
    measured.observe(last())
    latencies = metrics.latencies("chat", "1")
    assert latencies.time_to_first_token.count == 1
    assert latencies.inter_token_latency.count == 2
    assert measured.num_generated == 0


def test_a_queue_time_that_nobody_told_is_not_observed(metrics: Metrics) -> None:
    measured = meter(metrics)
    measured.observe(last())
    queue = metrics.latencies("chat", "1").queue
    assert queue.count == 0
    measured.observe(last(timing=Timing(0.5, 1.0, 2.0, 1)))
    assert queue.count == 1


def test_usage_is_known_once_every_choice_has_told_its_own(metrics: Metrics) -> None:
    measured = meter(metrics, num_choices=2)
    measured.observe(last(0, Usage(3, 5, 1)))
    measured.observe(last(1, Usage(3, 2, 1)))
    measured.observe(last(2, Usage(4, 1)))
    assert measured.usage == Usage(7, 8, 1)
    measured.observe(last(3))
    assert measured.usage is None


def test_a_prompt_is_counted_though_its_first_choice_was_whole_before(metrics: Metrics) -> None:
    measured = meter(metrics, num_choices=2)
    measured.observe(last(1, Usage(3, 2)))
    assert measured.usage == Usage(3, 2)
    assert measured.num_generated == 2
