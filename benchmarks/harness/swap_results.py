"""What a benchmark of swaps found: who answered, how soon, and what memory did. Pure arithmetic."""

from collections.abc import Mapping, Sequence

import msgspec

from harness.load import Sample
from harness.open_loop import Answer
from harness.results import Machine
from harness.summary import Percentiles, percentiles
from harness.timeline import Timeline
from harness.trend import Trend

STEADY = "steady, both"  # the phase to which others are compared

Texts = Mapping[str, Sequence[str]]
"""For each version the answer that it gives to each prompt when nothing else happens."""


class Phase(msgspec.Struct, frozen=True):
    """Requests under one condition; a failed one counts as nothing else.

    `num_wrong` named a version that was not active between request and first output. `num_mixed`
    had another text than the version that they name gives alone; None where that tells nothing.
    Time to the first token counts from the moment at which a request was due, `late` is how long
    after it this client had sent it.
    """

    name: str
    num_requests: int
    num_failed: int
    num_wrong: int
    num_mixed: int | None
    ttft: Percentiles
    late: Percentiles
    first_error: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured.

    Of the prompts, `num_telling` get another text from the one version than from the other.
    Capacities are requests a second of each version, `moves` the server's own times in
    milliseconds. Memory is in bytes: trends a swap, `load_memory` before the loads and after each.
    """

    executor: str
    num_telling: int
    capacities: list[float]
    rate: float
    phases: list[Phase]
    moves: dict[str, Percentiles]
    num_moves: int
    api_memory: Trend | None
    worker_memory: Trend | None
    load_seconds: list[float]
    load_memory: list[int]


class SwapResults(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and what a reader must know to judge it."""

    date: str
    model: str
    command: str
    machine: Machine
    versions: dict[str, str]
    precisions: list[str]
    prompt_tokens: int
    output_tokens: int
    interval: float
    found: Found


def phase(
    name: str,
    answers: Sequence[Answer],
    output_tokens: int,
    timeline: Timeline,
    texts: Texts | None,
) -> Phase:
    errors = [error for each in answers if (error := _error(each.sample, output_tokens))]
    good = [each for each in answers if _error(each.sample, output_tokens) is None]
    return Phase(
        name=name,
        num_requests=len(answers),
        num_failed=len(errors),
        num_wrong=sum(not _is_allowed(each.sample, timeline) for each in good),
        num_mixed=None if texts is None else sum(_is_mixed(each, texts) for each in good),
        ttft=percentiles([each.sample.arrivals[0] - each.due for each in good]),
        late=percentiles([each.sample.sent - each.due for each in answers]),
        first_error=errors[0] if errors else None,
    )


def ratio(found: Found, name: str, of: str = "p99") -> float | None:
    """A phase's latency to that of the steady ones taken together."""
    named = {phase.name: phase for phase in found.phases}
    value, base = (getattr(named[each].ttft, of) for each in (name, STEADY))
    return value / base if value and base else None


def milliseconds(values: Sequence[float]) -> Percentiles:
    return percentiles([value / 1e3 for value in values])


def _error(sample: Sample, output_tokens: int) -> str | None:
    if sample.error is None and sample.completion_tokens != output_tokens:
        return f"{sample.completion_tokens} tokens instead of {output_tokens}"
    if sample.error is None and not sample.arrivals:
        return "the answer was empty"
    return sample.error


def _is_allowed(sample: Sample, timeline: Timeline) -> bool:
    return timeline.allows(sample.version, sample.sent, sample.arrivals[0])


def _is_mixed(answer: Answer, texts: Texts) -> bool:
    expected = texts.get(answer.sample.version or "")
    return expected is None or expected[answer.prompt] != answer.sample.text
