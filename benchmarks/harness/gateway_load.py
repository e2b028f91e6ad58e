"""Puts the compiled load on gateways, in turns, with the compiled stub behind all of them."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.gateways import Gateway, on_core
from harness.peers import MODEL
from harness.processes import tree_cpu_seconds
from harness.routing_results import Answered, Cell, Round, Shape
from harness.systems import Command

PATH = "/v1/chat/completions"
CREDENTIAL = "authorization: Bearer sk-bench-0123456789abcdef0123456789abcdef"
QUESTION = (
    "The mill stands where the river bends; why does its wheel turn by day and by night? " * 4
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The load that every gateway gets, and the programs and cores that it is made with."""

    shapes: Sequence[Shape]
    rounds: int
    seconds: float
    num_events: int
    gap_us: int
    stub: Path
    load: Path
    gateway_core: int
    stub_core: int
    load_core: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Stub:
    url: str
    command: Command

    @property
    def cpu_seconds(self) -> float:
        assert self.command.process is not None
        return tree_cpu_seconds(self.command.process.pid)


@asynccontextmanager
async def running_stub(plan: Plan) -> AsyncIterator[Stub]:
    flags = ("--events", str(plan.num_events), "--gap-us", str(plan.gap_us))
    command = Command(
        arguments=on_core(plan.stub_core, str(plan.stub), *flags), log=plan.folder / "stub.log"
    )
    process = await command.start(piped=True)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            await process.wait()
            command.check()
        yield Stub(url, command)
    finally:
        await command.close()


async def measure(gateways: Sequence[Gateway], stub: Stub, plan: Plan) -> list[Cell]:
    """Every shape, in every round each gateway; who goes first changes from round to round."""
    cells: list[Cell] = []
    for shape in plan.shapes:
        of_shape = [Cell(gateway.name, shape, []) for gateway in gateways]
        for number in range(plan.rounds):
            order = [(number + i) % len(gateways) for i in range(len(gateways))]
            for i in order:
                of_shape[i].rounds.append(await _round(gateways[i], stub, shape, plan))
        cells += of_shape
        for cell in of_shape:
            print(f"{cell.gateway:>20} {shape}: {cell.rate:.0f}/s {cell.latency}", flush=True)
    return cells


async def _round(gateway: Gateway, stub: Stub, shape: Shape, plan: Plan) -> Round:
    before = time.monotonic(), gateway.cpu_seconds, stub.cpu_seconds
    answered = await run_load(gateway.url, shape, plan)
    seconds = time.monotonic() - before[0]
    return Round(
        answered=answered,
        gateway_cpu=(gateway.cpu_seconds - before[1]) / seconds,
        stub_cpu=(stub.cpu_seconds - before[2]) / seconds,
    )


async def run_load(url: str, shape: Shape, plan: Plan) -> Answered:
    command = Command(
        arguments=on_core(plan.load_core, str(plan.load), *_flags(url, shape, plan)),
        log=plan.folder / "load.log",
    )
    process = await command.start(piped=True)
    try:
        said, _ = await process.communicate()
        if process.returncode:
            command.check()
    finally:
        await command.close()
    return msgspec.json.decode(said, type=Answered)


def _flags(url: str, shape: Shape, plan: Plan) -> list[str]:
    flags = {
        "url": url + PATH,
        "body": body(shape).decode(),
        "header": CREDENTIAL,
        "connections": str(shape.connections),
        "measure-ms": str(round(plan.seconds * 1e3)),
        "stream": str(int(shape.is_stream)),
        "events": str(plan.num_events),
    }
    return [part for name, value in flags.items() for part in (f"--{name}", value)]


def body(shape: Shape) -> bytes:
    """A short question, as clients of OpenAI's API ask it."""
    asked = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": QUESTION},
        ],
        "max_tokens": 64,
        "temperature": 0.7,
        "stream": shape.is_stream,
    }
    return msgspec.json.encode(asked)
