"""A rollout as a person sees it: tables at once, or live until it ends; plain lines in a pipe."""

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.client import Client
from headrace.client.rollouts import Rollout, RolloutSummary, Shadow
from headrace.routing.rollouts.decision import Decision, Numbers

POLL = 1.0  # seconds
_LAST_DECISIONS = 10  # that a screen shows
_UNBOUNDED = 10_000  # columns; a file or a pipe has no edge at which to break lines
_NOTHING = "-"
_STYLES = {
    "fine": "green",
    "promoted": "green",
    "worse": "red",
    "rolled_back": "red",
    "aborted": "red",
    "paused": "yellow",
    "stalled": "yellow",
}


def print_rollout(rollout: Rollout) -> None:
    _console().print(_shown(rollout))


def print_rollouts(rollouts: Iterable[RolloutSummary]) -> None:
    """A row a rollout."""
    table = _table("id", "stable", "candidate", "state", "users", "began")
    for each in rollouts:
        percent, began = f"{each.stage_percent:g} %", _when(each.created_at)
        _add(table, each.rollout_id, each.stable, each.candidate, each.state, percent, began)
    _console().print(table)


def watch_rollout(client: Client, rollout_id: str, *, is_quiet: bool) -> Rollout:
    """Show every change of it until it ends, unless quiet; returns how it ended."""
    states = _states(client, rollout_id)
    if is_quiet:
        return _last(states)
    console = _console()
    return _live(console, states) if console.is_terminal else _in_lines(console, states)


def _states(client: Client, rollout_id: str) -> Iterator[Rollout]:
    """Now and then, the last one being over."""
    while not (rollout := client.rollouts.get(rollout_id)).is_over:
        yield rollout
        time.sleep(POLL)
    yield rollout


def _last(states: Iterable[Rollout]) -> Rollout:
    *_, last = states
    return last


def _live(console: Console, states: Iterator[Rollout]) -> Rollout:
    rollout = next(states)
    with Live(_shown(rollout), console=console, auto_refresh=False) as live:
        for rollout in states:
            live.update(_shown(rollout), refresh=True)
    return rollout


def _in_lines(console: Console, states: Iterator[Rollout]) -> Rollout:
    """What is decided, as it is; of long lists of decisions only what is new."""
    shown = 0.0
    for rollout in states:
        for decision in rollout.decisions:
            if decision.at > shown:
                console.print(_decision(decision))
                shown = decision.at
    return rollout


def _shown(rollout: Rollout) -> Group:
    parts: list[Text | Table] = [_head(rollout), _progress(rollout)]
    if rollout.numbers:
        parts += [Text(), _guards(rollout)]
    if rollout.waiting_for:
        parts += [Text(), Text(f"waiting for {', '.join(rollout.waiting_for)}")]
    if rollout.shadow is not None:
        parts += [Text(), _shadow(rollout.shadow)]
    decisions = rollout.decisions[-_LAST_DECISIONS:]
    return Group(*parts, Text(), *map(_decision, decisions))


def _head(rollout: Rollout) -> Text:
    words = f"{rollout.candidate} beside {rollout.stable}: "
    return Text(words).append(rollout.state, _STYLES.get(rollout.state, "bold"))


def _progress(rollout: Rollout) -> Text:
    seen = f"{rollout.num_candidate} requests, stable version {rollout.num_stable}"
    if rollout.is_over or rollout.stage_percent not in rollout.stages:
        return Text(f"{rollout.stage_percent:g} % of users; candidate {seen}")
    number = rollout.stages.index(rollout.stage_percent) + 1
    stage = f"stage {number} of {len(rollout.stages)}: {rollout.stage_percent:g} % of users"
    held = f"{rollout.held_seconds:.0f} of {rollout.stage_seconds:.0f} s"
    return Text(f"{stage}, held for {held}; candidate {seen}")


def _guards(rollout: Rollout) -> Table:
    table = _table("guard", "limit", "candidate", "stable", "over the limit by", "says")
    for name, numbers in rollout.numbers.items():
        _add(
            table,
            name,
            _number(numbers.limit),
            _number(numbers.candidate),
            _number(numbers.stable),
            _excess(numbers),
            str(numbers.verdict),
        )
    return table


def _excess(numbers: Numbers) -> str:
    """With the range in which it lies; under the limit it is below 0."""
    bounds = f"{_number(numbers.lowest_excess)} to {_number(numbers.highest_excess)}"
    return f"{_number(numbers.excess)} ({bounds})"


def _shadow(shadow: Shadow) -> Text:
    compared = f"{shadow.num_equal} of {shadow.num_greedy} greedy answers are equal"
    latencies = f"{_number(shadow.candidate_latency)} s, stable {_number(shadow.stable_latency)} s"
    return Text(
        f"shadow: {shadow.num_mirrored} mirrored, {shadow.num_dropped} dropped,"
        f" {shadow.num_failed} failed; {compared}; mean latency {latencies}"
    )


def _decision(decision: Decision) -> Text:
    words = Text(f"{_when(decision.at)} ")
    words.append(f"{decision.kind:<11}", _STYLES.get(decision.kind, "bold"))
    return words.append(f" {decision.stage_percent:>3g} %  {decision.reason}")


def _number(number: float | None) -> str:
    return _NOTHING if number is None else f"{number:.4g}"


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _add(table: Table, *cells: str) -> None:
    """What a server says is text, never markup."""
    table.add_row(*(Text(each, _STYLES.get(each, ""), overflow="fold") for each in cells))


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED)
