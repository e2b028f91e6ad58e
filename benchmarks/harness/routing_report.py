"""Writes the results of a benchmark of routing for a reader, with what to distrust."""

from collections.abc import Iterator, Sequence

from harness.report import pair, table
from harness.routing_results import DIRECT, Cell, RoutingResults, added

BUSY = 0.9  # of a core; a gateway under it was not the limit


def markdown(results: RoutingResults) -> str:
    """The whole section, without its heading."""
    parts = [_facts(results), *_tables(results)]
    skipped = (f"{name}: skipped, {why}." for name, why in results.skipped.items())
    if notes := [f"- {note}" for note in (*warnings(results), *skipped)]:
        parts.append("\n".join(notes))
    return "\n\n".join(parts) + "\n"


def warnings(results: RoutingResults) -> Iterator[str]:
    """Everything that makes a number doubtful or bad, as sentences."""
    for cell in results.cells:
        where = f"{cell.gateway}, {_kind(cell)} at {cell.shape.connections}"
        yield from (f"{where}: {error}." for error in cell.errors)
        gateway, stub, load = cell.cpus
        _, stub_core, load_core = results.cores
        busiest = stub + load if stub_core == load_core else max(stub, load)
        if cell.gateway != DIRECT and gateway < BUSY < busiest:
            yield f"{where}: the stub and this client were the limit, not the gateway."


def _facts(results: RoutingResults) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    gateway, stub, load = results.cores
    rounds = max(len(cell.rounds) for cell in results.cells)
    return (
        f"{results.date}, {machine.cores} cores of {machine.cpu}: the gateway on core {gateway}, "
        f"the stub on {stub}, the load on {load}. Streams of {results.num_events} events "
        f"{results.gap_us / 1e3:g} ms apart; {results.seconds:g} s a run, the median of {rounds}. "
        f"{versions}.\n\n```\n{results.command}\n```"
    )


def _tables(results: RoutingResults) -> Iterator[str]:
    whole = [cell for cell in results.cells if not cell.shape.is_stream]
    streams = [cell for cell in results.cells if cell.shape.is_stream]
    if whole:
        header = ["requests/s (slowest to fastest)", "to direct", "latency p50 / p99 ms"]
        yield _table(header, [_row(results, cell) for cell in whole], "a request")
    if streams:
        header = ["events/s (slowest to fastest)", "to direct", "first event p50 / p99 ms"]
        rows = [[*_row(results, cell), _gap(cell)] for cell in streams]
        yield _table(header, rows, "an event", "gap p50 / p99 ms")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], of: str, *more: str) -> str:
    first, last = ["gateway", "users", *header], ["added p50 / p99 ms", f"CPU µs {of}"]
    return table([*first, *last, "CPU of gateway / stub / load", *more], rows)


def _row(results: RoutingResults, cell: Cell) -> list[str]:
    direct = results.without(cell)
    is_direct = cell.gateway == DIRECT
    return [
        cell.gateway,
        str(cell.shape.connections),
        f"{cell.rate:.0f} ({min(cell.rates):.0f} to {max(cell.rates):.0f})",
        f"{cell.rate / direct.rate:.3f}" if direct and direct.rate else "",
        pair(cell.latency, 3),
        "" if direct is None or is_direct else pair(added(cell, direct), 3),
        "" if is_direct else f"{cell.cpu_us:.1f}",
        " / ".join(f"{share:.0%}" for share in cell.cpus),
    ]


def _gap(cell: Cell) -> str:
    return pair(cell.middle(lambda answered: answered.gap_ms), 2)


def _kind(cell: Cell) -> str:
    return "streams" if cell.shape.is_stream else "whole answers"
