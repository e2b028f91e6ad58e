"""What clients notice of swaps: failures, wrong versions, latency, memory, while versions change.

    python benchmarks/swap.py
    python benchmarks/swap.py --swaps 20 --steady 10 --loads 2

Requests come at random moments (Poisson), at a share of what the server can do: first while nothing
happens, then while the model is swapped and rolled back between two loaded versions, then while
nothing happens again, and last while versions are loaded, swapped to and unloaded.
"""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from harness import interrupt, machine
from harness.client import ServerError
from harness.open_loop import OverloadError
from harness.peers import MODEL, Setup, free_port, headrace_config
from harness.prompts import Prompts
from harness.report import replace_section
from harness.swap_report import markdown
from harness.swap_results import Found, SwapResults
from harness.swapping import Plan, Subject, measure
from harness.systems import Command, Server, StartError
from harness.weights import Weights, fetch_gguf

from headrace.errors import HeadraceError
from headrace.modelfiles.model import open_model

NAME = "swap"


def main() -> int:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    code = 0
    try:
        run(options)
    except* (HeadraceError, StartError, ServerError, OverloadError) as errors:
        print(*errors.exceptions, sep="\n", file=sys.stderr)
        code = 1
    return code


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("--model", default="smollm2", help="a GGUF file, or a source of one")
    it.add_argument("--executor", default="auto")
    it.add_argument("--precision", nargs=2, default=["w8a16", "w4a16"], metavar="PRECISION")
    it.add_argument("--share", type=float, default=0.6, help="of the capacity that is asked for")
    it.add_argument("--warm-up", type=int, default=2000, metavar="N", help="swaps before, at rest")
    it.add_argument("--swaps", type=int, default=200, metavar="N", help="and rollbacks, in turns")
    it.add_argument("--interval", type=float, default=1.0, help="seconds between swaps, on average")
    it.add_argument("--steady", type=float, default=100.0, help="seconds before, and after")
    it.add_argument("--loads", type=int, default=5, metavar="N")
    it.add_argument("--prompt-tokens", type=int, default=32)
    it.add_argument("--output-tokens", type=int, default=16)
    it.add_argument("--capacity-seconds", type=float, default=15.0, help="for each version")
    it.add_argument("--seed", type=int, default=0)
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    it.add_argument("--write", type=Path, metavar="DOCUMENT", help="replace its section")
    return it


def run(options: argparse.Namespace) -> None:
    model = fetch_gguf(options.model, options.out / "state")
    subject = create_subject(model, options)
    plan = Plan(
        prompts=Prompts(open_model(model).tokenizer, options.prompt_tokens),
        output_tokens=options.output_tokens,
        share=options.share,
        warm_up=options.warm_up,
        swaps=options.swaps,
        interval=options.interval,
        steady=options.steady,
        loads=options.loads,
        capacity_seconds=options.capacity_seconds,
        seed=options.seed,
    )
    found = interrupt.run(measure(subject, plan))
    write(results(found, model, options), options)


def create_subject(model: Path, options: argparse.Namespace) -> Subject:
    """Headrace with the first version, and how the others are loaded.

    Prompts come again and must cost the same each time, so no prefix is cached. The KV cache is
    small, so that all of it is in use before memory is watched.
    """
    setup = Setup(
        weights=Weights(model, options.out / "weights"),
        folder=options.out,
        max_concurrency=0,
        context=options.prompt_tokens + options.output_tokens,
        num_threads=len(os.sched_getaffinity(0)),
    )
    # What an earlier run left under the same port would be taken up again.
    for file in (options.out / "state").glob("headrace.db*"):
        file.unlink()
    port = free_port()
    first, _ = options.precision
    engine = {"prefix_caching": "false", "kv_cache_memory": '"64MiB"'}
    config = headrace_config(NAME, options.executor, first, port, setup, **engine)
    command = Command(
        arguments=[sys.executable, "-m", "headrace", "serve", "--config", str(config)],
        log=setup.log(NAME),
    )
    return Subject(
        server=Server(NAME, f"http://127.0.0.1:{port}", MODEL, command=command),
        source=str(setup.weights.gguf("file")),
        engine={
            "executor": options.executor,
            "prefix_caching": False,
            "kv_cache_memory": "64MiB",
        },
        precisions=options.precision,
    )


def results(found: Found, model: Path, options: argparse.Namespace) -> SwapResults:
    return SwapResults(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        model=model.stem,
        command=f"python benchmarks/swap.py {shlex.join(sys.argv[1:])}".strip(),
        machine=machine.describe(),
        versions=machine.versions(),
        precisions=options.precision,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        interval=options.interval,
        found=found,
    )


def write(results: SwapResults, options: argparse.Namespace) -> None:
    text = markdown(results)
    encoded = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (options.out / "swap.json").write_bytes(encoded)
    (options.out / "swap.md").write_text(text)
    if options.write:
        replace_section(options.write, NAME, text)
    print(encoded.decode())
    print(text)


if __name__ == "__main__":
    sys.exit(main())
