"""How long one step takes in an executor alone: decode steps and whole prompts.

    python benchmarks/executor_steps.py native:w8a16 native:bf16 openvino:int8

Prints the best of some runs in milliseconds, for each executor and precision named.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from headrace.executors.config import ExecutorConfig
from headrace.executors.executor import Batch, Executor
from headrace.executors.select import create_executor
from headrace.modelfiles.model import open_model
from headrace.modelfiles.sources import fetch

DECODES = (1, 2, 4, 8, 16, 32)  # sequences, one new token each
PROMPTS = (128, 512)  # tokens of one sequence
FIRST_TOKEN_ID = 5  # past the special ones


def main() -> None:
    options = parser().parse_args()
    files = open_model(fetch(options.model, options.out / "state", lambda *_: None))
    for name in options.executors:
        kind, _, precision = name.partition(":")
        config = ExecutorConfig(
            executor=kind,
            precision=precision or "auto",
            kv_cache_memory=options.kv_cache_memory,
            max_model_len=2048,
            cache_dir=options.out / "state" / "cache",
        )
        executor = create_executor(files, config, lambda *_: None)
        print(f"{executor.name}, weights {executor.precision}, KV {executor.kv_cache_precision}")
        for count in DECODES:
            show(f"decode {count}", count, best(executor, batch(executor, count, options.context)))
        for length in PROMPTS:
            show(f"prompt {length}", length, best(executor, batch(executor, 1, 0, length)))
        executor.close()


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("executors", nargs="+", metavar="EXECUTOR:PRECISION")
    it.add_argument("--model", default="smollm2")
    it.add_argument("--context", type=int, default=200, help="tokens before a decoded one")
    it.add_argument("--kv-cache-memory", type=int, default=1 << 29, metavar="BYTES")
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    return it


def batch(executor: Executor, count: int, past: int, length: int = 1) -> Batch:
    """`count` sequences with `past` tokens in the cache (whatever it holds) and `length` new."""
    blocks = -(-(past + length) // executor.block_size)
    ids = FIRST_TOKEN_ID + np.arange(count * length) % (executor.vocab_size // 2)
    return Batch(
        token_ids=ids.astype(np.int32),
        num_new_tokens=np.full(count, length, np.int32),
        num_computed_tokens=np.full(count, past, np.int32),
        block_tables=[range(first * blocks, (first + 1) * blocks) for first in range(count)],
        rows=np.arange(length - 1, count * length, length, dtype=np.int32),
    )


def best(executor: Executor, work: Batch, runs: int = 7) -> float:
    """Seconds of the fastest run; the first one is not counted."""
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        executor.execute(work)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def show(name: str, num_tokens: int, seconds: float) -> None:
    print(f"  {name:<10} {seconds * 1e3:8.2f} ms {num_tokens / seconds:8.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
