"""Turns runs into numbers: throughput, latencies and token accounting. Pure arithmetic."""

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.load import Run, Sample


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds at the median and the 99th percentile; None where nothing was measured."""

    p50: float | None
    p99: float | None


class Summary(msgspec.Struct, frozen=True):
    """One system at one concurrency, over all rounds.

    Throughput counts the tokens that came while every user was busy. `spread` is the slowest and
    the fastest round. Inter-token latency is the gap between two outputs of one request, time per
    output token the mean of a request's gaps by token.
    """

    num_requests: int
    num_errors: int
    tokens_per_second: float
    spread: tuple[float, float]
    ttft: Percentiles
    inter_token: Percentiles
    time_per_output_token: Percentiles
    wrong_counts: int
    first_error: str | None = None


def percentiles(seconds: Sequence[float]) -> Percentiles:
    if not len(seconds):
        return Percentiles(None, None)
    p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99])
    return Percentiles(float(p50), float(p99))


def summarize(runs: Sequence[Run], *, prompt_tokens: int, output_tokens: int) -> Summary:
    """Fold the rounds of one system at one concurrency; failed requests count only as errors."""
    samples = [sample for run in runs for sample in run.samples]
    good = [sample for sample in samples if sample.error is None and sample.arrivals]
    rates = [throughput(run) for run in runs]
    wrong = [
        s for s in good if (s.prompt_tokens, s.completion_tokens) != (prompt_tokens, output_tokens)
    ]
    errors = [s.error or "the answer was empty" for s in samples if s.error or not s.arrivals]
    return Summary(
        num_requests=len(samples),
        num_errors=len(errors),
        tokens_per_second=_pooled_throughput(runs),
        spread=(min(rates), max(rates)),
        ttft=percentiles([s.arrivals[0] - s.sent for s in good]),
        inter_token=percentiles([gap for s in good for gap in np.diff(s.arrivals)]),
        time_per_output_token=percentiles([_per_token(s) for s in good if s.completion_tokens > 1]),
        wrong_counts=len(wrong),
        first_error=errors[0] if errors else None,
    )


def throughput(run: Run) -> float:
    return _pooled_throughput([run])


def _pooled_throughput(runs: Sequence[Run]) -> float:
    seconds = sum(run.full_until - run.started for run in runs)
    return sum(_tokens_while_full(run) for run in runs) / seconds if seconds else 0.0


def _tokens_while_full(run: Run) -> float:
    return sum(_tokens_until(sample, run.full_until) for sample in run.samples)


def _tokens_until(sample: Sample, end: float) -> float:
    """The sample's tokens that came by `end`; outputs may hold several tokens, evenly shared."""
    if sample.error is not None or not sample.arrivals:
        return 0.0
    num_arrived = int(np.searchsorted(sample.arrivals, end, side="right"))
    return sample.completion_tokens * num_arrived / len(sample.arrivals)


def _per_token(sample: Sample) -> float:
    return (sample.arrivals[-1] - sample.arrivals[0]) / (sample.completion_tokens - 1)
