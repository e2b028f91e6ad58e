"""Writes results for a reader: Markdown tables, ratios to a baseline, and what to distrust."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from harness.results import Level, Results, SystemResult
from harness.summary import Percentiles

CLIENT_CPU_LIMIT = 0.2  # of a core: more than this is missing where the model computes
IDLE_CPU_LIMIT = 0.05


def markdown(results: Results, baseline: str) -> str:
    """The whole results section, without its heading."""
    parts = [_facts(results), _speed(results, baseline), _footprint(results)]
    notes = [*warnings(results), *(f"{n}: skipped, {why}." for n, why in results.skipped.items())]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def warnings(results: Results) -> Iterator[str]:
    """Everything that makes a number doubtful, as sentences."""
    for system in results.systems:
        for level in system.levels:
            yield from (f"{system.name} at {level.concurrency}: {w}." for w in _doubts(level))


def replace_section(document: Path, name: str, section: str) -> None:
    """Put `section` between the document's markers of that name; ValueError when it has none."""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, begin, rest = document.read_text().partition(first)
    _, end, tail = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"{document} has no {first} ... {last}")
    document.write_text(f"{head}{first}\n\n{section}\n{last}{tail}")


def _doubts(level: Level) -> Iterator[str]:
    summary = level.summary
    if summary.num_errors:
        yield f"{summary.num_errors} of {summary.num_requests} failed ({summary.first_error})"
    if summary.wrong_counts:
        yield f"{summary.wrong_counts} answers had another number of tokens than asked for"
    if level.client_cpu > CLIENT_CPU_LIMIT:
        yield f"the client took {level.client_cpu:.0%} of a core, so the system could be faster"
    if level.missed_health:
        yield f"{level.missed_health} questions for its health had no good answer"
    if level.idle_cpu > IDLE_CPU_LIMIT:
        yield f"the idle systems took {level.idle_cpu:.0%} of a core"


def _facts(results: Results) -> str:
    machine, plan = results.machine, results.plan
    features = ", ".join(machine.features) or "no vector extension that matters here"
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds} rounds"
    return (
        f"{results.date}, {results.model}, {machine.cores} cores of {machine.cpu} ({features}), "
        f"{machine.memory / 2**30:.0f} GiB. {rounds}, prompt {plan.prompt_tokens} tokens, "
        f"{plan.output_tokens} output tokens. {versions}.\n\n"
        f"```\n{results.command}\n```"
    )


def _speed(results: Results, baseline: str) -> str:
    header = [
        "system",
        "users",
        "output tokens/s (slowest to fastest round)",
        f"to {baseline}",
        "TTFT p50 / p99 ms",
        "inter-token p50 / p99 ms",
        "CPU ms a token",
        "client CPU",
    ]
    base = _rates(results, baseline)
    rows = [_speed_row(s, level, base) for level, s in _by_concurrency(results.systems)]
    return table(header, rows)


def _speed_row(system: SystemResult, level: Level, base: dict[int, float]) -> list[str]:
    summary = level.summary
    slowest, fastest = summary.spread
    reference = base.get(level.concurrency)
    cpu = level.cpu_ms_per_token
    return [
        system.name,
        str(level.concurrency),
        f"{summary.tokens_per_second:.1f} ({slowest:.1f} to {fastest:.1f})",
        f"{summary.tokens_per_second / reference:.2f}" if reference else "",
        pair(summary.ttft, 0),
        pair(summary.inter_token, 1),
        "" if cpu is None else f"{cpu:.1f}",
        f"{level.client_cpu:.1%}",
    ]


def _footprint(results: Results) -> str:
    header = [
        "system",
        "peak memory GB",
        "first start s",
        "median start s",
        "liveness p99 ms, loaded",
    ]
    return table(header, [_footprint_row(system) for system in results.systems])


def _footprint_row(system: SystemResult) -> list[str]:
    starts = system.start_seconds
    health = [level.health_p99 for level in system.levels if level.health_p99 is not None]
    return [
        system.name,
        f"{system.peak_memory / 1e9:.2f}" if system.peak_memory else "",
        f"{starts[0]:.1f}" if starts else "",
        f"{median(starts):.1f}" if starts else "",
        f"{max(health):.1f}" if health else "",
    ]


def _by_concurrency(systems: Sequence[SystemResult]) -> list[tuple[Level, SystemResult]]:
    pairs = [(level, system) for system in systems for level in system.levels]
    return sorted(pairs, key=lambda pair: pair[0].concurrency)


def _rates(results: Results, name: str) -> dict[int, float]:
    return {
        level.concurrency: level.summary.tokens_per_second
        for system in results.systems
        if system.name == name
        for level in system.levels
    }


def pair(values: Percentiles, digits: int) -> str:
    """The median and the 99th percentile, or nothing."""
    if values.p50 is None or values.p99 is None:
        return ""
    return f"{values.p50:.{digits}f} / {values.p99:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
