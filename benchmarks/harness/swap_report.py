"""Writes the results of a benchmark of swaps for a reader, with what to distrust."""

from collections.abc import Iterator, Sequence
from statistics import median

from harness.report import pair, table
from harness.swap_results import Found, Phase, SwapResults, ratio
from harness.trend import Trend

LATE_LIMIT = 20.0  # milliseconds; the client itself was too slow to tell much


def markdown(results: SwapResults) -> str:
    """The whole section, without its heading."""
    parts = [_facts(results), _phases(results.found), _changes(results.found)]
    if notes := [f"- {note}" for note in warnings(results.found)]:
        parts.append("\n".join(notes))
    return "\n\n".join(parts) + "\n"


def warnings(found: Found) -> Iterator[str]:
    """Everything that makes a number doubtful or bad, as sentences."""
    for phase in found.phases:
        if phase.num_failed:
            yield f"{phase.name}: {phase.num_failed} failed, the first with {phase.first_error}."
        if phase.late.p99 is not None and phase.late.p99 > LATE_LIMIT:
            yield f"{phase.name}: this client sent up to {phase.late.p99:.0f} ms late (p99)."
        if phase.num_mixed is None and phase is found.phases[0]:
            yield "Mixed answers could not be told: see the method."


def _facts(results: SwapResults) -> str:
    machine = results.machine
    features = ", ".join(machine.features) or "no vector extension that matters here"
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    found = results.found
    first, second = found.capacities
    return (
        f"{results.date}, {results.model}, {machine.cores} cores of {machine.cpu} ({features}), "
        f"{machine.memory / 2**30:.0f} GiB. {found.executor}, versions with "
        f"{' and '.join(results.precisions)} weights, prompt {results.prompt_tokens} tokens, "
        f"{results.output_tokens} output tokens; {found.num_telling} prompts tell the versions "
        f"apart. Capacity {first:.1f} and {second:.1f} requests/s, "
        f"load {found.rate:.1f}, a swap every {results.interval:g} s. {versions}.\n\n"
        f"```\n{results.command}\n```"
    )


def _phases(found: Found) -> str:
    header = [
        *("phase", "requests", "failed", "wrong version", "mixed"),
        *("TTFT p50 / p99 ms", "p50 / p99 to steady"),
    ]
    return table(header, [_phase_row(found, phase) for phase in found.phases])


def _phase_row(found: Found, phase: Phase) -> list[str]:
    ratios = [ratio(found, phase.name, of) for of in ("p50", "p99")]
    return [
        phase.name,
        str(phase.num_requests),
        str(phase.num_failed),
        str(phase.num_wrong),
        "" if phase.num_mixed is None else str(phase.num_mixed),
        pair(phase.ttft, 0),
        " / ".join("" if each is None else f"{each:.2f}" for each in ratios),
    ]


def _changes(found: Found) -> str:
    rows = [
        [f"swap or rollback {when}, p50 / p99 ms", pair(taken, 2)]
        for when, taken in found.moves.items()
    ]
    memory = {"api process": found.api_memory, "workers": found.worker_memory}
    rows += [
        [f"memory of the {name}, KiB a swap, over {found.num_moves}", _slope(trend)]
        for name, trend in memory.items()
    ]
    if found.load_seconds:
        rows.append(["load of a version under load, median s", f"{median(found.load_seconds):.1f}"])
        rows.append(["memory before and after each load and unload, MiB", _mib(found.load_memory)])
    return table(["what", "measured"], rows)


def _slope(trend: Trend | None) -> str:
    if trend is None:
        return ""
    slope, error, noise = (each / 1024 for each in (trend.slope, trend.error, trend.noise))
    return f"{slope:+.2f} ± {error:.2f} (points lie {noise:.0f} KiB off the line)"


def _mib(values: Sequence[int]) -> str:
    return ", ".join(f"{value / 2**20:.0f}" for value in values)
