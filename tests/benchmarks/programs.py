"""Runs the compiled programs of the benchmarks, the stub and the load, for tests."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from harness.routing_results import Answered


@asynccontextmanager
async def running_stub(programs: Path, *flags: str) -> AsyncIterator[str]:
    """Its URL; at the end it must have left in order."""
    pipe = subprocess.PIPE
    stub = await asyncio.create_subprocess_exec(programs / "stub", *flags, stdout=pipe)
    assert stub.stdout is not None
    try:
        yield (await stub.stdout.readline()).decode().strip()
    finally:
        stub.terminate()
        code = await stub.wait()
    assert code == 0


async def load(programs: Path, url: str, **flags: object) -> Answered:
    """A short load; the names of flags as Python has them."""
    given = {"measure_ms": 200, "warmup_ms": 0, "body": '{"stream": true}', "stream": 1, **flags}
    named = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
    process = await asyncio.create_subprocess_exec(
        programs / "load", "--url", url, *(part for pair in named for part in pair),
        stdout=subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0
    return msgspec.json.decode(said, type=Answered)
