"""What Headrace itself costs: time added to the first token, and Python a streamed token.

    python benchmarks/overhead.py --concurrency 16
    python benchmarks/overhead.py --instant 6 --concurrency 32 --output-tokens 1500

The first token is seen by this client and by the engine that computed it; the difference is what
HTTP, the api process and the channel add, on the way there and on the way back. Processor time is
read from the kernel: the api process's own and what the kernel spends for it on sockets, and the
worker's event loop. `py-spy`, where it is installed, tells in which module the engine's thread is.
With `--instant` the model takes so many milliseconds a step and computes nothing: the worker's
processor time is then the engine's Python, and caches are warm.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from harness import interrupt, stacks
from harness.client import HttpClient, ServerError
from harness.first_token import split, time_first_tokens
from harness.load import Load
from harness.peers import HERE, MODEL, Setup, free_port, headrace_config
from harness.processes import cpu_times, find, thread_cpu_seconds
from harness.prompts import Prompts
from harness.summary import throughput
from harness.systems import Command, Server
from harness.weights import Weights, fetch_gguf

from headrace.modelfiles.model import open_model

PROFILE_MARGIN = 2.0  # seconds that py-spy starts and ends inside the load


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = fetch_gguf(options.model, options.out / "state")
    tokenizer = open_model(model).tokenizer
    prompts = Prompts(tokenizer, options.prompt_tokens)
    texts = [tokenizer.decode(ids) for ids in prompts.take(0, options.requests)]
    found = interrupt.run(measure(model, texts, prompts, options))
    (options.out / "overhead.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("--executor", default="auto")
    it.add_argument("--precision", default="auto")
    it.add_argument("--model", default="smollm2", help="a GGUF file, or a source of one")
    it.add_argument("--instant", type=float, metavar="MILLISECONDS", help="a step, without a model")
    it.add_argument("--concurrency", type=int, default=16)
    it.add_argument("--prompt-tokens", type=int, default=128)
    it.add_argument("--output-tokens", type=int, default=128)
    it.add_argument("--requests", type=int, default=50, help="to time the first token of")
    it.add_argument("--seconds", type=float, default=20.0, help="of load for processor time")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    return it


async def measure(
    model: Path, texts: list[str], prompts: Prompts, options: argparse.Namespace
) -> dict[str, Any]:
    stamps = options.out / "overhead.stamps"
    server = create_server(model, stamps, options)
    http = HttpClient(server.url)
    try:
        await server.start()
        tokens = await time_first_tokens(http, texts)
        accepted = [float(line) for line in stamps.read_text().split()][-len(tokens) :]
        users = options.concurrency
        load = Load(
            prompts.take(len(texts), users * 16),
            users,
            options.output_tokens,
            2 * users,
            options.seconds,
        )
        return {
            "first_token_ms": msgspec.to_builtins(split(tokens, accepted)),
            "load": await processor_time(server, load, options.out / "worker.stacks"),
        }
    finally:
        http.close()
        await server.close()


def create_server(model: Path, stamps: Path, options: argparse.Namespace) -> Server:
    """Headrace as `headrace serve` runs it, with a worker that stamps its requests."""
    setup = Setup(
        weights=Weights(model, options.out / "weights"),
        folder=options.out,
        max_concurrency=options.concurrency,
        context=options.prompt_tokens + options.output_tokens,
        num_threads=len(os.sched_getaffinity(0)),
    )
    port = free_port()
    config = headrace_config("overhead", options.executor, options.precision, port, setup)
    instant = [] if options.instant is None else ["--instant", str(options.instant / 1e3)]
    command = Command(
        arguments=[
            *(sys.executable, "-m", "harness.measured_server", str(config)),
            *("--stamps", str(stamps), *instant),
        ],
        log=setup.log("overhead"),
        environment={"PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))},
    )
    return Server("overhead", f"http://127.0.0.1:{port}", MODEL, command=command)


async def processor_time(server: Server, load: Load, folded: Path) -> dict[str, Any]:
    """Microseconds of processor time a streamed token, by process, thread and module."""
    assert server.pid is not None
    worker = find(server.pid, "harness.measured_worker")
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
