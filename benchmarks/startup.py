"""How long a start takes: from the command to the last byte of the first answer.

    python benchmarks/startup.py
    python benchmarks/startup.py path/to/model.gguf --starts 3 --precision bf16

What this does not know goes to `headrace serve`. The model is fetched before; the first start may
pack its weights, the others find them in the cache.
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import interrupt
from harness.client import STATUS_OK, HttpClient
from harness.peers import MODEL
from harness.systems import START_LIMIT, Command, StartError

from headrace.errors import HeadraceError
from headrace.modelfiles.sources import fetch

URL = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds after the command at which the URL was told, and the first answer complete."""

    told: float
    answered: float


def main() -> int:
    options, flags = parser().parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        fetch(options.source, options.out / "state", lambda *_: None)
        starts = interrupt.run(measure(options, flags))
    except (HeadraceError, StartError) as error:
        print(error, file=sys.stderr)
        return 1
    answered = [start.answered for start in starts]
    print(f"first {answered[0]:.2f} s, median of {len(starts)} {median(answered):.2f} s")
    return 0


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    it.add_argument("source", nargs="?", default="smollm2")
    it.add_argument("--starts", type=int, default=5, choices=range(1, 101), metavar="N")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    return it


async def measure(options: argparse.Namespace, flags: Sequence[str]) -> list[Start]:
    arguments = [
        *(sys.executable, "-m", "headrace", "serve", f"{MODEL}={options.source}", *flags),
        *("--port", "0", "--state-dir", str(options.out / "state")),
    ]
    found = []
    for _ in range(options.starts):
        found.append(await once(Command(arguments=arguments, log=options.out / "startup.log")))
        print(f"told {found[-1].told:.2f} s, answered {found[-1].answered:.2f} s", flush=True)
    return found


async def once(command: Command) -> Start:
    """Start the server, ask it once and end it."""
    begun = time.monotonic()
    process = await command.start(piped=True)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_LIMIT):
            url = await _url(process.stdout)
            if url is None:
                await process.wait()
                command.check()
                raise StartError("ended without saying where it is")
            told = time.monotonic() - begun
            await _answer(url)
        return Start(told, time.monotonic() - begun)
    except TimeoutError:
        raise StartError(f"gave no answer in {START_LIMIT:.0f} s") from None
    finally:
        await command.close()


async def _url(output: asyncio.StreamReader) -> str | None:
    async for line in output:
        if found := URL.search(line.decode()):
            return found[0]
    return None


async def _answer(url: str) -> None:
    http = HttpClient(url)
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
    parts: list[bytes] = []
    try:
        status = await http.exchange("POST", "/v1/completions", parts.append, body)
    finally:
        http.close()
    if status != STATUS_OK:
        raise StartError(f"answered HTTP {status}: {b''.join(parts).decode(errors='replace')}")


if __name__ == "__main__":
    sys.exit(main())
