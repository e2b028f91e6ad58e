"""What Headrace itself costs: time added to the first token, and Python a streamed token.

    python benchmarks/overhead.py --concurrency 16

The first token is seen twice, by this client and by the engine that computed it; the difference of
the two is what HTTP, the api process, the channel and tokenizing add. Processor time is read from
the kernel: the api process's own and what the kernel spends for it on sockets, and the worker's
event loop. `py-spy`, where it is installed, tells in which module the engine's thread is.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from harness import interrupt, stacks
from harness.client import STATUS_OK, HttpClient, ServerError
from harness.load import Load
from harness.peers import MODEL, Setup, create
from harness.processes import cpu_times, find, thread_cpu_seconds
from harness.prompts import Prompts
from harness.summary import percentiles, throughput
from harness.systems import Server
from harness.weights import Weights

from headrace.modelfiles.model import open_model
from headrace.modelfiles.sources import fetch

FIRST_TOKENS = 8  # of each answer whose first token is timed
PROFILE_MARGIN = 2.0  # seconds that py-spy starts and ends inside the load


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = fetch(options.model, options.out / "state", lambda *_: None)
    tokenizer = open_model(model).tokenizer
    prompts = Prompts(tokenizer, options.prompt_tokens)
    setup = Setup(
        weights=Weights(model, options.out / "weights"),
        folder=options.out,
        max_concurrency=options.concurrency,
        context=options.prompt_tokens + options.output_tokens,
        num_threads=2,
    )
    server = create(options.system, setup)
    if not isinstance(server, Server) or not options.system.startswith("headrace"):
        sys.exit("only headrace tells when its engine had the first token")
    texts = [tokenizer.decode(ids) for ids in prompts.take(0, options.requests)]
    found = interrupt.run(measure(server, texts, prompts, options))
    (options.out / "overhead.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("--system", default="headrace")
    it.add_argument("--model", default="smollm2")
    it.add_argument("--concurrency", type=int, default=16)
    it.add_argument("--prompt-tokens", type=int, default=128)
    it.add_argument("--output-tokens", type=int, default=128)
    it.add_argument("--requests", type=int, default=50, help="to time the first token of")
    it.add_argument("--seconds", type=float, default=20.0, help="of load for processor time")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    return it


async def measure(
    server: Server, texts: list[str], prompts: Prompts, options: argparse.Namespace
) -> dict[str, Any]:
    try:
        await server.start()
        first_token = await added_to_first_token(server.url, texts)
        users = options.concurrency
        load = Load(
            prompts.take(len(texts), users * 16),
            users,
            options.output_tokens,
            2 * users,
            options.seconds,
        )
        return {
            "added_to_first_token_ms": msgspec.to_builtins(percentiles(first_token)),
            "load": await processor_time(server, load, options.out / "worker.stacks"),
        }
    finally:
        await server.close()


async def added_to_first_token(url: str, texts: list[str]) -> list[float]:
    """Seconds between the engine's first token and ours, one request after another."""
    http = HttpClient(url)
    try:
        return [await _added(http, text) for text in texts]
    finally:
        http.close()


async def _added(http: HttpClient, text: str) -> float:
    stream = GenerateStream()
    body = {"model": MODEL, "prompt": text, "max_tokens": FIRST_TOKENS, "temperature": 0}
    sent = time.monotonic()
    status = await http.exchange("POST", "/api/v1/generate", stream.feed, {**body, "stream": True})
    if status != STATUS_OK or stream.first is None or stream.engine_seconds is None:
        raise ServerError(f"HTTP {status} and no first token with its metrics")
    return stream.first - sent - stream.engine_seconds


@dataclass(slots=True)
class GenerateStream:
    """Keeps when the first event came and what the last one says of the engine's first token."""

    first: float | None = None
    engine_seconds: float | None = None
    rest: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self.first = self.first or now
                metrics = json.loads(line[6:]).get("metrics")
                if metrics:
                    self.engine_seconds = metrics["time_to_first_token_ms"] / 1e3


async def processor_time(server: Server, load: Load, folded: Path) -> dict[str, Any]:
    """Microseconds of processor time a streamed token, by process, thread and module."""
    assert server.pid is not None
    worker = find(server.pid, "headrace.worker")
    assert worker is not None
    api_before, worker_before = cpu_times(server.pid), thread_cpu_seconds(worker)
    profile = stacks.record(worker, load.seconds - PROFILE_MARGIN, folded)
    run, modules = await asyncio.gather(server.run(load), profile)
    user, system = cpu_times(server.pid)
    threads = seconds_since(worker_before, thread_cpu_seconds(worker))
    errors = [sample.error for sample in run.samples if sample.error]
    if errors:
        raise ServerError(errors[0])
    micro = 1e6 / sum(sample.completion_tokens for sample in run.samples)
    return {
        "concurrency": load.concurrency,
        "tokens_per_second": throughput(run),
        "api_us_per_token": (user - api_before[0]) * micro,
        "api_kernel_us_per_token": (system - api_before[1]) * micro,
        "worker_loop_us_per_token": threads[worker] * micro,
        "worker_us_per_token": sum(threads.values()) * micro,
        "engine_seconds_by_module": modules,
    }


def seconds_since(before: dict[int, float], now: dict[int, float]) -> dict[int, float]:
    return {thread: seconds - before.get(thread, 0.0) for thread, seconds in now.items()}


if __name__ == "__main__":
    main()
