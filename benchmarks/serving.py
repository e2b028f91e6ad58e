"""Compares serving systems on the same prompts in one run: speed, latency, memory, start-up.

    python benchmarks/serving.py --system headrace:bf16 --system openvino-genai:f16

A system is `headrace`, `openvino-genai`, `llama.cpp` or `vllm`, with a precision after a colon.
`--url NAME=URL` measures a server that already runs; its model is named by `--model-name`.
"""

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from harness import interrupt, machine
from harness.measure import measure
from harness.peers import MODEL, MissingPeerError, Setup, create
from harness.prompts import Prompts
from harness.report import markdown, replace_section
from harness.results import Plan, Results
from harness.systems import Server, StartError, System
from harness.weights import Weights, fetch_gguf

from headrace.errors import HeadraceError
from headrace.modelfiles.model import open_model

DEFAULT_SYSTEMS = (
    "headrace:bf16",
    "headrace:w8a16",
    "headrace:w8a8",
    "headrace:w4a16",
    "openvino-genai:f16",
    "openvino-genai:q8_0",
    "llama.cpp:file",
    "vllm:bf16",
)


def main() -> int:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        model = fetch_gguf(options.model, options.out / "state")
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    plan = Plan(
        concurrencies=options.concurrency,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        rounds=options.rounds,
        seconds=options.seconds,
        starts=options.starts,
    )
    systems, skipped = choose(options, setup(options, model))
    if not systems:
        print("no system to measure: every one of them is missing", file=sys.stderr)
        return 1
    prompts = Prompts(open_model(model).tokenizer, plan.prompt_tokens)
    try:
        measured, silent = interrupt.run(measure(systems, plan, prompts, say))
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    if not measured:
        print("no system to measure: none of them came up", file=sys.stderr)
        return 1
    write(
        Results(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            model=model.stem,
            command=f"python benchmarks/serving.py {shlex.join(sys.argv[1:])}".strip(),
            machine=machine.describe(),
            plan=plan,
            systems=measured,
            skipped=skipped | silent,
            versions=machine.versions(),
        ),
        options,
    )
    return 0


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("--system", action="append", metavar="PEER[:PRECISION]")
    it.add_argument("--url", action="append", default=[], metavar="NAME=URL")
    it.add_argument("--baseline", default="openvino-genai:f16", metavar="NAME")
    it.add_argument("--model", default="smollm2", help="a GGUF file, or a source of one")
    it.add_argument("--model-name", default=MODEL, help="what --url servers call the model")
    it.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32])
    it.add_argument("--prompt-tokens", type=int, default=128)
    it.add_argument("--output-tokens", type=int, default=128)
    it.add_argument("--rounds", type=int, default=3)
    it.add_argument("--seconds", type=float, default=10.0, help="the least a run lasts")
    it.add_argument("--starts", type=int, default=3, choices=range(1, 101), metavar="N")
    it.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    it.add_argument("--llama-server", default="llama-server", metavar="PATH")
    it.add_argument("--vllm", default="vllm", metavar="PATH")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    it.add_argument("--section", default="results", metavar="NAME", help="of the files written")
    it.add_argument("--write", type=Path, metavar="DOCUMENT", help="replace its section")
    return it


def setup(options: argparse.Namespace, model: Path) -> Setup:
    return Setup(
        weights=Weights(model, options.out / "weights"),
        folder=options.out,
        max_concurrency=max(options.concurrency),
        context=options.prompt_tokens + options.output_tokens + 32,
        num_threads=options.threads,
        llama_server=options.llama_server,
        vllm=options.vllm,
    )


def choose(options: argparse.Namespace, setup: Setup) -> tuple[list[System], dict[str, str]]:
    """The systems that are here, and why the others are not."""
    named = [entry.partition("=") for entry in options.url]
    systems: list[System] = [Server(name, url, options.model_name) for name, _, url in named]
    skipped = {}
    for name in options.system or ([] if named else DEFAULT_SYSTEMS):
        try:
            systems.append(create(name, setup))
        except MissingPeerError as error:
            skipped[name] = str(error)
            say(f"{name} is skipped: {error}")
    return systems, skipped


def write(results: Results, options: argparse.Namespace) -> None:
    (options.out / f"{options.section}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(results), indent=1)
    )
    section = markdown(results, options.baseline)
    (options.out / f"{options.section}.md").write_text(section)
    if options.write is not None:
        replace_section(options.write, options.section, section)
    print(section)


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
