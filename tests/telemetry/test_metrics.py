import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headrace.endpoints import EndpointStatus, RoutingCounts
from headrace.generation import EngineStats
from headrace.telemetry.metrics import TABLE, Histogram, Metrics, ModelSample

SAMPLE = ModelSample(
    model="chat",
    version="1",
    ready=True,
    active=True,
    leases=2,
    health_score=0.9,
    restarts=2,
    routing=RoutingCounts(8, 9),
    memory_bytes=3,
    stats=EngineStats(num_running=4, num_free_blocks=5, num_generated_tokens=6),
    endpoints=(
        EndpointStatus(
            name="gpu-1",
            kind="upstream",
            is_taking=False,
            breaker="half_open",
            weight=1.0,
            num_in_flight=7,
            tokens_in_flight=70,
            latency=0.1,
            reason="it answered 500",
        ),
    ),
)


def test_names_follow_their_kind_and_unit() -> None:
    names = [row.name for row in TABLE]
    assert len(set(names)) == len(names)
    for row in TABLE:
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert row.help.endswith(".")
        if row.unit in ("seconds", "bytes"):
            assert row.name.endswith(f"_{row.unit}")


def test_prometheus_can_read_what_is_written() -> None:
    metrics = Metrics("1.2")
    metrics.http_request(method="GET", route="/x", status=404, seconds=0.2)
    metrics.latencies("chat", "1").inter_token_latency.observe(0.02, 5)
    text = metrics.exposition([SAMPLE]).decode()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["headrace_http_requests_total", "/x", "4xx", "GET"] == 1
    assert samples["headrace_inter_token_latency_seconds_count", "1", "chat"] == 5
    assert samples["headrace_requests_running", "1", "chat"] == 4
    assert samples["headrace_worker_restarts_total", "1", "chat"] == 2
    assert samples["headrace_retries_total", "1", "chat"] == 8
    assert samples["headrace_answers_moved_total", "1", "chat"] == 9
    assert samples["headrace_generated_tokens_total", "1", "chat"] == 6
    assert samples["headrace_model_active", "1", "chat"] == 1
    assert samples["headrace_model_health_score", "1", "chat"] == 0.9
    assert samples["headrace_endpoint_taking", "1", "chat", "gpu-1"] == 0
    assert samples["headrace_endpoint_in_flight", "1", "chat", "gpu-1"] == 7
    assert samples["headrace_endpoint_breaker", "1", "chat", "closed", "gpu-1"] == 0
    assert samples["headrace_endpoint_breaker", "1", "chat", "gpu-1", "open"] == 0
    assert samples["headrace_endpoint_breaker", "1", "chat", "gpu-1", "half_open"] == 1
    assert samples["headrace_build_info", "1.2"] == 1


def test_what_is_labelled_with_a_version_goes_with_it() -> None:
    metrics = Metrics("1.2")
    for version in ("1", "2"):
        metrics.latencies("chat", version).duration.observe(0.1)
        metrics.request_ended("chat", version, "stop")
    metrics.change_ended("swap", "done")
    metrics.forget("chat", "1")
    text = metrics.exposition([]).decode()
    assert 'version="1"' not in text
    assert 'requests_total{finish_reason="stop",model="chat",version="2"} 1.0' in text
    assert 'model_changes_total{kind="swap",outcome="done"} 1.0' in text


@given(st.lists(st.floats(0.001, 700), min_size=1, max_size=200))
def test_quantiles_are_in_order_and_within_a_bucket_of_the_truth(values: list[float]) -> None:
    histogram = Histogram(bounds=(1.0, 10.0, 100.0, 1000.0))
    for value in values:
        histogram.observe(value)
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    quantiles = [histogram.quantile(share) for share in (0.5, 0.95, 0.99, 1.0)]
    assert quantiles == sorted(quantiles)
    bounds = (0.0, *histogram.bounds)
    low = max(bound for bound in bounds if bound < max(values) or bound == 0)
    assert low <= quantiles[-1] <= min(bound for bound in bounds if bound >= max(values))


def test_without_observations_there_is_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


def test_a_value_beyond_the_last_bucket_is_counted() -> None:
    histogram = Histogram(bounds=(1.0,))
    histogram.observe(50.0)
    assert histogram.counts == [0, 1]
    assert histogram.quantile(0.5) == 1.0
