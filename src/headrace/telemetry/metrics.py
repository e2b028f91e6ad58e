"""Every metric of the server: one table, one owner, bounded labels.

Observed on the event loop only, so a counter is a plain number and an observation costs well under
a microsecond; `prometheus_client` does the exposition. Knows nothing of HTTP routes or engines.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.endpoints import BreakerState, EndpointStatus, RoutingCounts
from headrace.generation import EngineStats

PREFIX = "headrace_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08)
_SLOW = (0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_SECONDS = (*_FAST, *_SLOW)

_BREAKER_STATES: tuple[BreakerState, ...] = get_args(BreakerState)

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "seconds", "bytes", "tokens", "blocks"]
_MODEL = ("model", "version")
_ENDPOINT = (*_MODEL, "endpoint")  # names of the configuration, or of those who may load models


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric: its name after the prefix, what it counts and in which unit."""

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = ()


TABLE: tuple[Declaration, ...] = (
    Declaration(
        "http_requests_total",
        "counter",
        "",
        "Answered HTTP requests by route template and status class.",
        ("method", "route", "status"),
    ),
    Declaration(
        "http_request_duration_seconds",
        "histogram",
        "seconds",
        "Arrival of an HTTP request to the last byte of its answer.",
        ("route",),
    ),
    Declaration("http_requests_in_flight", "gauge", "", "HTTP requests being answered."),
    Declaration(
        "requests_total",
        "counter",
        "",
        "Generation requests, each once: how the last choice finished, error, or abort (the client"
        " left or its time was over).",
        (*_MODEL, "finish_reason"),
    ),
    Declaration(
        "time_to_first_token_seconds",
        "histogram",
        "seconds",
        "Arrival of a request to its first token.",
        _MODEL,
    ),
    Declaration(
        "inter_token_latency_seconds",
        "histogram",
        "seconds",
        "Time between two tokens of one sequence.",
        _MODEL,
    ),
    Declaration(
        "request_queue_seconds",
        "histogram",
        "seconds",
        "Arrival of a sequence at the engine to its first step.",
        _MODEL,
    ),
    Declaration(
        "request_duration_seconds",
        "histogram",
        "seconds",
        "Arrival of a generation request to its last token.",
        _MODEL,
    ),
    Declaration(
        "prompt_tokens_total", "counter", "tokens", "Prompt tokens taken by the engine.", _MODEL
    ),
    Declaration("generated_tokens_total", "counter", "tokens", "Tokens generated.", _MODEL),
    Declaration("requests_running", "gauge", "", "Sequences in the running batch.", _MODEL),
    Declaration("requests_waiting", "gauge", "", "Sequences that wait for a place.", _MODEL),
    Declaration("waiting_tokens", "gauge", "tokens", "Prompt tokens that wait.", _MODEL),
    Declaration("kv_blocks", "gauge", "blocks", "Blocks of the KV cache.", _MODEL),
    Declaration("kv_blocks_free", "gauge", "blocks", "Blocks that no sequence holds.", _MODEL),
    Declaration("engine_steps_total", "counter", "", "Forward passes of the engine.", _MODEL),
    Declaration(
        "prefix_cache_queries_total",
        "counter",
        "tokens",
        "Prompt tokens looked up in the prefix cache.",
        _MODEL,
    ),
    Declaration(
        "prefix_cache_hits_total",
        "counter",
        "tokens",
        "Prompt tokens found in the prefix cache.",
        _MODEL,
    ),
    Declaration(
        "preemptions_total", "counter", "", "Sequences preempted for want of blocks.", _MODEL
    ),
    Declaration(
        "requests_aborted_total", "counter", "", "Requests aborted before their end.", _MODEL
    ),
    Declaration("worker_restarts_total", "counter", "", "Worker processes replaced.", _MODEL),
    Declaration("retries_total", "counter", "", "Tries of requests after the first.", _MODEL),
    Declaration(
        "answers_moved_total", "counter", "", "Answers that went on at another endpoint.", _MODEL
    ),
    Declaration("worker_memory_bytes", "gauge", "bytes", "Memory of a worker process.", _MODEL),
    Declaration(
        "model_ready", "gauge", "", "1 while a version of a model answers, else 0.", _MODEL
    ),
    Declaration(
        "model_active", "gauge", "", "1 for the version that answers its model's name.", _MODEL
    ),
    Declaration("model_leases", "gauge", "", "Requests that hold a version.", _MODEL),
    Declaration(
        "model_health_score", "gauge", "", "Health of a version that was probed, 0 to 1.", _MODEL
    ),
    Declaration(
        "endpoint_taking",
        "gauge",
        "",
        "1 while a worker or an upstream gets new requests, else 0.",
        _ENDPOINT,
    ),
    Declaration("endpoint_in_flight", "gauge", "", "Requests that an endpoint has.", _ENDPOINT),
    Declaration(
        "endpoint_breaker",
        "gauge",
        "",
        "1 for the state that an endpoint's breaker is in, 0 for the others.",
        (*_ENDPOINT, "state"),
    ),
    Declaration(
        "model_changes_total",
        "counter",
        "",
        "Loads, swaps, rollbacks, unloads and the like, by how they ended.",
        ("kind", "outcome"),
    ),
    Declaration("build_info", "gauge", "", "Always 1; the version is the label.", ("version",)),
)

_ENGINE_FIELDS: dict[str, str] = {
    "prompt_tokens_total": "num_prompt_tokens",
    "generated_tokens_total": "num_generated_tokens",
    "requests_running": "num_running",
    "requests_waiting": "num_waiting",
    "waiting_tokens": "num_waiting_tokens",
    "kv_blocks": "num_blocks",
    "kv_blocks_free": "num_free_blocks",
    "engine_steps_total": "num_steps",
    "prefix_cache_queries_total": "num_prefix_cache_queries",
    "prefix_cache_hits_total": "num_prefix_cache_hits",
    "preemptions_total": "num_preemptions",
    "requests_aborted_total": "num_aborted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSample:
    """What the server knows of one model version at the moment of a scrape."""

    model: str
    version: str
    ready: bool
    active: bool
    leases: int
    health_score: float | None
    restarts: int
    routing: RoutingCounts
    memory_bytes: int
    stats: EngineStats
    endpoints: tuple[EndpointStatus, ...] = ()


Labels = tuple[str, ...]


class Histogram:
    """Counts per bucket and their sum, without locks: one thread observes and reads."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The value under which `share` of the observations lie, by line within its bucket."""
        rank = share * self.count
        below = 0
        for number, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = self.bounds[number - 1] if number else 0.0
                high = self.bounds[min(number, len(self.bounds) - 1)]
                return low + (high - low) * (rank - below) / count
            below += count
        return None


@dataclass(frozen=True, slots=True)
class ModelLatencies:
    """The histograms of one model version, looked up once per request."""

    time_to_first_token: Histogram
    inter_token_latency: Histogram
    queue: Histogram
    duration: Histogram


class Metrics:
    """All counters and histograms of one server."""

    def __init__(self, version: str) -> None:
        self.in_flight = 0
        self._version = version
        self._started = time.time()
        self._counters: dict[str, dict[Labels, float]] = {
            row.name: {} for row in TABLE if row.kind == "counter"
        }
        self._histograms: dict[str, dict[Labels, Histogram]] = {
            row.name: {} for row in TABLE if row.kind == "histogram"
        }
        self._latencies: dict[Labels, ModelLatencies] = {}

    def http_request(self, *, method: str, route: str, status: int, seconds: float) -> None:
        self._count("http_requests_total", (method, route, f"{status // 100}xx"))
        self._histogram("http_request_duration_seconds", (route,)).observe(seconds)

    def request_ended(self, model: str, version: str, finish_reason: str) -> None:
        self._count("requests_total", (model, version, finish_reason))

    def change_ended(self, kind: str, outcome: str) -> None:
        self._count("model_changes_total", (kind, outcome))

    def forget(self, model: str, version: str) -> None:
        """Drop what is labelled with a version that is no more: labels must not pile up."""
        labels = (model, version)
        self._latencies.pop(labels, None)
        for row in TABLE:
            if row.labels[: len(_MODEL)] == _MODEL:
                series = self._counters.get(row.name) or self._histograms.get(row.name) or {}
                for each in [each for each in series if each[: len(labels)] == labels]:
                    del series[each]

    def latencies(self, model: str, version: str) -> ModelLatencies:
        labels = (model, version)
        latencies = self._latencies.get(labels)
        if latencies is None:
            latencies = self._latencies[labels] = ModelLatencies(
                time_to_first_token=self._histogram("time_to_first_token_seconds", labels),
                inter_token_latency=self._histogram("inter_token_latency_seconds", labels),
                queue=self._histogram("request_queue_seconds", labels),
                duration=self._histogram("request_duration_seconds", labels),
            )
        return latencies

    def exposition(self, models: Sequence[ModelSample]) -> bytes:
        """Render everything in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(self._families(models)))
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        return generate_latest(registry)

    def summary(self, models: Sequence[ModelSample]) -> dict[str, object]:
        """The same numbers for people: latencies as quantiles."""
        values = {name: _listed(name, series) for name, series in self._values(models).items()}
        latencies = {
            name: [
                {**dict(zip(_DECLARED[name].labels, labels, strict=True)), **_quantiles(histogram)}
                for labels, histogram in series.items()
            ]
            for name, series in self._histograms.items()
        }
        return {"uptime_seconds": time.time() - self._started, **values, **latencies}

    def _count(self, name: str, labels: Labels) -> None:
        series = self._counters[name]
        series[labels] = series.get(labels, 0) + 1

    def _histogram(self, name: str, labels: Labels) -> Histogram:
        series = self._histograms[name]
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = Histogram()
        return histogram

    def _values(self, models: Sequence[ModelSample]) -> dict[str, dict[Labels, float]]:
        """Every counter and gauge: our own, and those that the models bring."""
        values: dict[str, dict[Labels, float]] = {
            **{name: dict(series) for name, series in self._counters.items()},
            "http_requests_in_flight": {(): self.in_flight},
            "build_info": {(self._version,): 1},
            "worker_restarts_total": {_labels(m): m.restarts for m in models},
            "retries_total": {_labels(m): m.routing.num_retries for m in models},
            "answers_moved_total": {_labels(m): m.routing.num_moves for m in models},
            "worker_memory_bytes": {_labels(m): m.memory_bytes for m in models},
            "model_ready": {_labels(m): m.ready for m in models},
            "model_active": {_labels(m): m.active for m in models},
            "model_leases": {_labels(m): m.leases for m in models},
            "model_health_score": {
                _labels(m): m.health_score for m in models if m.health_score is not None
            },
        }
        for name, field in _ENGINE_FIELDS.items():
            values[name] = {_labels(m): getattr(m.stats, field) for m in models}
        return values | _endpoint_values(models)

    def _families(self, models: Sequence[ModelSample]) -> Iterator[Metric]:
        values = self._values(models)
        for row in TABLE:
            if row.kind == "histogram":
                yield _histogram_family(row, self._histograms[row.name])
            else:
                yield _value_family(row, values[row.name])


class _Snapshot(Collector):
    """Families made for one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _value_family(row: Declaration, series: Mapping[Labels, float]) -> Metric:
    kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    family = kind(PREFIX + row.name, row.help, labels=row.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram_family(row: Declaration, series: Mapping[Labels, Histogram]) -> Metric:
    family = HistogramMetricFamily(PREFIX + row.name, row.help, labels=row.labels)
    for labels, histogram in series.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric(labels, buckets, histogram.sum)
    return family


def _endpoint_values(models: Sequence[ModelSample]) -> dict[str, dict[Labels, float]]:
    endpoints = {(*_labels(m), each.name): each for m in models for each in m.endpoints}
    return {
        "endpoint_taking": {labels: each.is_taking for labels, each in endpoints.items()},
        "endpoint_in_flight": {labels: each.num_in_flight for labels, each in endpoints.items()},
        "endpoint_breaker": {
            (*labels, state): each.breaker == state
            for labels, each in endpoints.items()
            for state in _BREAKER_STATES
        },
    }


def _labels(model: ModelSample) -> Labels:
    return (model.model, model.version)


def _listed(name: str, series: Mapping[Labels, float]) -> object:
    """A number for a metric without labels, else one object for each combination of them."""
    names = _DECLARED[name].labels
    if not names:
        return series[()]
    return [
        {**dict(zip(names, labels, strict=True)), "value": value}
        for labels, value in series.items()
    ]


def _quantiles(histogram: Histogram) -> dict[str, object]:
    count = histogram.count
    return {
        "count": count,
        "mean": histogram.sum / count if count else None,
        "p50": histogram.quantile(0.50),
        "p95": histogram.quantile(0.95),
        "p99": histogram.quantile(0.99),
    }


_DECLARED = {row.name: row for row in TABLE}
