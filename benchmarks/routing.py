"""What a gateway costs in front of a fast server: latency added, and requests/s on one core.

    python benchmarks/routing.py
    python benchmarks/routing.py --gateway direct nginx --connections 64 --rounds 1

The server is a compiled stub that answers at once, or streams events at a fixed pace; the load is
compiled too, so that neither is the limit. An answer that is not whole and right is an error.
Each gateway has one core, and stub and load have others: one, where the machine has only two.
"""

import argparse
import os
import shlex
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from harness import interrupt, machine
from harness.compiled import MissingCompilerError, build
from harness.gateway_load import Plan, measure, running_stub
from harness.gateways import GATEWAYS, Gateway, Setup, create, versions
from harness.peers import MissingPeerError
from harness.report import replace_section
from harness.routing_report import markdown
from harness.routing_results import Cell, RoutingResults, Shape
from harness.systems import StartError

NAME = "routing"


def main() -> int:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        plan = create_plan(options)
        cells, skipped = interrupt.run(run(plan, options))
    except (MissingCompilerError, StartError) as error:
        print(error, file=sys.stderr)
        return 1
    write(results(cells, skipped, plan, options), options)
    return 0


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = list(GATEWAYS)
    it.add_argument("--gateway", nargs="+", choices=names, default=names, metavar="NAME")
    it.add_argument("--connections", nargs="+", type=int, default=[1, 16, 64], metavar="N")
    it.add_argument("--kind", nargs="+", choices=("whole", "stream"), default=["whole", "stream"])
    it.add_argument("--events", type=int, default=64, help="of a stream")
    it.add_argument("--gap-us", type=int, default=1000, help="between events")
    it.add_argument("--rounds", type=int, default=3)
    it.add_argument("--seconds", type=float, default=5.0, help="a run")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    it.add_argument("--write", type=Path, metavar="DOCUMENT", help="replace its section")
    return it


def create_plan(options: argparse.Namespace) -> Plan:
    cores = sorted(os.sched_getaffinity(0))
    return Plan(
        shapes=[
            Shape(connections, kind == "stream")
            for kind in options.kind
            for connections in options.connections
        ],
        rounds=options.rounds,
        seconds=options.seconds,
        num_events=options.events,
        gap_us=options.gap_us,
        stub=build("stub", options.out),
        load=build("load", options.out),
        gateway_core=cores[-1],
        stub_core=cores[0],
        load_core=cores[:-1][-1] if len(cores) > 1 else cores[0],
        folder=options.out,
    )


async def run(plan: Plan, options: argparse.Namespace) -> tuple[list[Cell], dict[str, str]]:
    """All gateways stay up, so that a slow minute of the machine falls on each of them."""
    async with AsyncExitStack() as stack:
        stub = await stack.enter_async_context(running_stub(plan))
        setup = Setup(folder=plan.folder, upstream=stub.url, core=plan.gateway_core)
        gateways, skipped = find_gateways(options.gateway, setup)
        for gateway in gateways:
            stack.push_async_callback(gateway.close)
            await gateway.start()
        return await measure(gateways, stub, plan), skipped


def find_gateways(names: list[str], setup: Setup) -> tuple[list[Gateway], dict[str, str]]:
    """Those that are installed, and why others are not there."""
    found: list[Gateway] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            found.append(create(name, setup))
        except MissingPeerError as error:
            skipped[name] = str(error)
    return found, skipped


def results(
    cells: list[Cell], skipped: dict[str, str], plan: Plan, options: argparse.Namespace
) -> RoutingResults:
    return RoutingResults(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=f"python benchmarks/routing.py {shlex.join(sys.argv[1:])}".strip(),
        machine=machine.describe(),
        versions=versions(),
        cores=(plan.gateway_core, plan.stub_core, plan.load_core),
        seconds=options.seconds,
        num_events=options.events,
        gap_us=options.gap_us,
        cells=cells,
        skipped=skipped,
    )


def write(results: RoutingResults, options: argparse.Namespace) -> None:
    text = markdown(results)
    encoded = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (options.out / f"{NAME}.json").write_bytes(encoded)
    (options.out / f"{NAME}.md").write_text(text)
    if options.write:
        replace_section(options.write, NAME, text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
