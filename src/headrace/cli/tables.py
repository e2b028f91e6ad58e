"""Models, safety reports and changes as tables: for a terminal's width, else one line a row."""

import sys
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.client import Change, Endpoint, Model, SafetyReport

_UNBOUNDED = 10_000  # columns; a file or a pipe has no edge at which to break lines
_STYLES = {"active": "green", "failed": "red", "passed": "green", "undone": "red"}
_MIB = 1 << 20
_NOTHING = "-"


def print_models(models: Iterable[Model]) -> None:
    """A row a version, then the upstreams of which, and what is wrong with which."""
    table = _table("", "model", "state", "phase", "health", "memory", "runs on", "leases")
    lines = []
    for model in models:
        table.add_row(*map(_cell, _model_row(model)))
        upstreams = [each for each in model.endpoints if each.kind == "upstream"]
        lines += [f"{model.model_id} upstream {_upstream(each)}" for each in upstreams]
        if model.reason:
            lines.append(f"{model.model_id}: {model.reason}")
    _print(table, *map(Text, lines))


def print_safety(report: SafetyReport) -> None:
    table = _table("check", "result", "detail")
    for check in report.checks:
        result = "passed" if check.passed else "failed"
        table.add_row(*map(_cell, (check.name, result, check.detail)))
    _print(table)


def print_history(changes: Iterable[Change]) -> None:
    """A row a change, then what there is to say of which: in a column it would push all others."""
    table = _table("when", "change", "model", "from", "to", "outcome", "took", "who")
    details = []
    for change in changes:
        table.add_row(*map(_cell, _change_row(change)))
        if change.detail:
            details.append(f"{_when(change)} {change.kind} {change.name}: {change.detail}")
    _print(table, *map(Text, details))


def _model_row(model: Model) -> tuple[str, ...]:
    runs_on = filter(None, (model.executor, model.precision))  # an upstream tells no precision
    return (
        "*" if model.active else "",
        model.model_id,
        model.state,
        _phase(model),
        _NOTHING if model.health_score is None else f"{model.health_score:.2f}",
        f"{model.memory_bytes / _MIB:,.0f} MiB" if model.memory_bytes else _NOTHING,
        " ".join(runs_on) or _NOTHING,
        str(model.leases),
    )


def _upstream(upstream: Endpoint) -> str:
    """How it does, and while it gets no requests why."""
    if not upstream.taking:
        breaker = "" if upstream.breaker == "closed" else f" (breaker {upstream.breaker})"
        return f"{upstream.name}: out{breaker}: {upstream.reason or 'no reason given'}"
    known = upstream.latency_seconds is not None
    latency = f", {upstream.latency_seconds:.3f} s to the first byte" if known else ""
    return f"{upstream.name}: {upstream.in_flight} in flight{latency}"


def _phase(model: Model) -> str:
    """With the share done while it is under way; "idle" and the like have none."""
    share = f" {model.progress:.0%}" if 0 < model.progress < 1 else ""
    return f"{model.phase}{share}" if model.phase else _NOTHING


def _change_row(change: Change) -> tuple[str, ...]:
    return (
        _when(change),
        change.kind,
        change.name,
        change.previous or _NOTHING,
        change.active or _NOTHING,
        change.outcome,
        _took(change),
        change.who,
    )


def _took(change: Change) -> str:
    """A pointer's move is a single write, whose own time is not in it."""
    if change.ended_at is None:
        return _NOTHING
    milliseconds = (change.ended_at - change.started_at) * 1e3
    return f"{milliseconds:,.0f} ms" if milliseconds >= 1 else "< 1 ms"


def _when(change: Change) -> str:
    return f"{datetime.fromtimestamp(change.started_at).astimezone():%Y-%m-%d %H:%M:%S}"


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _cell(text: str) -> Text:
    """What a server says is text, never markup."""
    return Text(text, _STYLES.get(text, ""), overflow="fold")


def _print(*parts: Table | Text) -> None:
    width = None if sys.stdout.isatty() else _UNBOUNDED
    console = Console(width=width)
    for part in parts:
        console.print(part)
