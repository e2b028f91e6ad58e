"""How much Python a generated token costs in the engine: everything but the arithmetic.

    python benchmarks/engine_overhead.py [--source smollm2] [--sequences 32] [--tokens 256]

The executor is replaced by one that answers at once. Prints microseconds a token for the whole
step, encoding included, and milliseconds for sampling a step's rows with common parameters:
processor time, the best of some runs. The step is timed twice: as it is, and with caches as cold as
a model leaves them, which is what a server pays.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness.instant import TEXT, InstantExecutor

from headrace.engine import sampling_state
from headrace.engine.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.sampling_state import SamplingState
from headrace.engine.tokenizer import Tokenizer
from headrace.executors.sampling.sampler import Sampler
from headrace.generation import GenerationRequest, SamplingParams
from headrace.modelfiles.model import open_model
from headrace.modelfiles.sources import fetch
from headrace.worker import frames

WEIGHTS_BYTES = 96 << 20  # more than the caches hold
SAMPLINGS = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.7, top_p 0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "top_k 50": SamplingParams(top_k=50),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "temperature 0.7, top_p 0.9, penalties": SamplingParams(
        temperature=0.7, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.2
    ),
}


def main() -> None:
    arguments = parse()
    files = open_model(fetch(arguments.source, arguments.state_dir, lambda _phase, _share: None))
    tokenizer = Tokenizer(files)
    executor = InstantExecutor(tokenizer.encode(TEXT), files.config.vocab_size)
    for caches, num_bytes in ("warm", 0), ("cold", WEIGHTS_BYTES):
        executor.weights = np.ones(num_bytes, dtype=np.int8)
        best = min(measure(executor, tokenizer, arguments) for _ in range(arguments.repeats))
        print(f"{best * 1e6:.2f} us a token, {arguments.sequences} greedy sequences, {caches}")
    if arguments.profile:
        profile(lambda: measure(executor, tokenizer, arguments))
    for name, sampling in SAMPLINGS.items():
        milliseconds = measure_sampling(sampling, arguments.sequences, executor.vocab_size) * 1e3
        print(f"{milliseconds:.2f} ms a step of {arguments.sequences} rows: {name}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="smollm2")
    parser.add_argument("--state-dir", type=Path, default=Path.home() / ".cache/headrace")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def measure(
    executor: InstantExecutor, tokenizer: Tokenizer, arguments: argparse.Namespace
) -> float:
    """Seconds a token once every prompt is computed, less those of the executor."""
    engine = Engine(executor, tokenizer, EngineConfig())
    sampling = SamplingParams(temperature=0, max_tokens=arguments.tokens, ignore_eos=True)
    for number in range(arguments.sequences):
        prompt_ids = [number, *tokenizer.encode(TEXT)[:127]]
        request = GenerationRequest(request_id=str(number), prompt=prompt_ids, sampling=sampling)
        engine.add(request, prompt_ids, 0.0)
    while engine.stats.num_waiting or engine.stats.num_generated_tokens < arguments.sequences:
        engine.step(0.0)
    done, executor.seconds, started = (
        engine.stats.num_generated_tokens,
        0.0,
        time.thread_time(),
    )
    while engine.stats.num_running == arguments.sequences:
        deliveries = engine.step(0.0)
        frames.encode(frames.Step(deliveries, engine.stats))
    seconds = time.thread_time() - started - executor.seconds
    return seconds / (engine.stats.num_generated_tokens - done)


def measure_sampling(params: SamplingParams, num_rows: int, vocab_size: int) -> float:
    """Seconds to sample rows shaped like a language model's: a few likely tokens, a long tail."""
    random = np.random.default_rng(0)
    ranks = np.log1p(np.arange(vocab_size)) * 1.6
    noise = random.standard_normal((num_rows, vocab_size)) * 0.7
    logits = (random.permuted(np.tile(-ranks, (num_rows, 1)), axis=1) + noise).astype(np.float32)
    states = [
        SamplingState(params, seed=row, index=0, prompt_ids=range(128), stop_ids=())
        for row in range(num_rows)
    ]
    sampler, best = Sampler(vocab_size), float("inf")
    for position in range(20):
        started = time.thread_time()
        wanted = sampling_state.sampling(states, [position] * num_rows, [-1] * num_rows, vocab_size)
        sampler.sample(wanted, logits)
        best = min(best, time.thread_time() - started)
    return best


def profile(work: Callable[[], float]) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
