"""A real worker process that keeps when each request reached its engine.

    python -m harness.measured_worker --stamps FILE [--instant SECONDS] --socket N --parent PID

With `--instant` its executor computes nothing and answers after so many seconds: what is left is
the server's own work.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TextIO

from harness.instant import TEXT, InstantExecutor
from headrace.engine.tokenizer import Tokenizer
from headrace.executors.executor import Progress
from headrace.generation import EngineStats, GenerationRequest, Prompt
from headrace.modelfiles.model import open_model
from headrace.modelfiles.sources import fetch
from headrace.worker.loading import EngineParts, model_info
from headrace.worker.loading import load as load_real
from headrace.worker.main import main as work
from headrace.worker.serving import Deliver, LoadedModel, ServingEngine
from headrace.worker.spec import WorkerSpec


class StampedEngine:
    """An engine that writes the monotonic time at which it is handed a request, one a line."""

    def __init__(self, engine: ServingEngine, stamps: TextIO) -> None:
        self._engine = engine
        self._stamps = stamps
        self.abort = engine.abort
        self.wait_for_fault = engine.wait_for_fault
        self.detokenize = engine.detokenize
        self.drain = engine.drain

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    async def add(self, request: GenerationRequest) -> None:
        # Before the engine has it, so that no answer comes before its stamp.
        self._stamps.write(f"{time.monotonic()}\n")
        await self._engine.add(request)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        return await self._engine.tokenize(prompt, add_special_tokens=add_special_tokens)

    async def close(self) -> None:
        await self._engine.close()
        self._stamps.close()


class StampedModel:
    """A loaded model whose engine is stamped."""

    def __init__(self, model: LoadedModel, stamps: Path) -> None:
        self._model = model
        self._stamps = stamps
        self.info = model.info
        self.close = model.close

    def start(self, deliver: Deliver) -> ServingEngine:
        return StampedEngine(self._model.start(deliver), self._stamps.open("w", buffering=1))


def load(stamps: Path, instant: float | None, spec: WorkerSpec, progress: Progress) -> StampedModel:
    model = load_real(spec, progress) if instant is None else load_instant(instant, spec, progress)
    return StampedModel(model, stamps)


def load_instant(seconds: float, spec: WorkerSpec, progress: Progress) -> LoadedModel:
    """The model's tokenizer with an executor that takes `seconds` a step and no processor."""
    files = open_model(fetch(spec.source, spec.state_dir, progress))
    tokenizer = Tokenizer(files)
    executor = InstantExecutor(tokenizer.encode(TEXT), files.config.vocab_size, step=seconds)
    return EngineParts(spec, executor, tokenizer, model_info(spec, files, executor))


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--stamps", type=Path, required=True)
    parser.add_argument("--instant", type=float)
    options, rest = parser.parse_known_args()
    return work(rest, load=partial(load, options.stamps, options.instant))


if __name__ == "__main__":
    sys.exit(main())
