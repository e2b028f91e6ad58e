"""From a source to an engine. Imports what takes long to import; the load's thread imports it."""

import hashlib
from dataclasses import dataclass, replace

from headrace import __version__
from headrace.engine.async_engine import AsyncEngine
from headrace.engine.engine import Engine
from headrace.engine.tokenizer import Tokenizer
from headrace.executors.config import CACHE_FOLDER
from headrace.executors.cpu import machine
from headrace.executors.executor import Executor, Progress
from headrace.executors.footprint import footprint_of
from headrace.executors.memory import available_memory, require_memory
from headrace.executors.select import create_executor
from headrace.generation import ModelInfo
from headrace.modelfiles.model import ModelFiles, open_model
from headrace.modelfiles.sources import fetch
from headrace.worker.serving import Deliver, ServingEngine
from headrace.worker.spec import WorkerSpec


def load(spec: WorkerSpec, progress: Progress) -> "EngineParts":
    """Fetch, open and compile a model; blocks for seconds to minutes."""
    files = open_model(fetch(spec.source, spec.state_dir, progress))
    _require_memory_for(files, spec)
    config = replace(spec.executor, cache_dir=spec.state_dir / CACHE_FOLDER)
    executor = create_executor(files, config, progress)
    return EngineParts(spec, executor, Tokenizer(files), model_info(spec, files, executor))


def _require_memory_for(files: ModelFiles, spec: WorkerSpec) -> None:
    """InsufficientMemoryError when not even the weights fit, before any memory is taken.

    A KV cache is mapped, and filled as requests come, so it need not fit now. Where the kernel does
    not say what is available (macOS), nothing is checked.
    """
    available = available_memory()
    if available is not None:
        needed = footprint_of(files.config, files.weights, spec.executor, machine()).at_start
        require_memory(needed, available=available, model_id=spec.model_id)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model, ready to be started."""

    spec: WorkerSpec
    executor: Executor
    tokenizer: Tokenizer
    info: ModelInfo

    def start(self, deliver: Deliver) -> ServingEngine:
        engine = Engine(self.executor, self.tokenizer, self.spec.engine)
        return AsyncEngine(engine, self.tokenizer, deliver)

    def close(self) -> None:
        self.executor.close()


def model_info(spec: WorkerSpec, files: ModelFiles, executor: Executor) -> ModelInfo:
    return ModelInfo(
        model_id=spec.model_id,
        architecture=files.config.architecture,
        executor=executor.name,
        precision=executor.precision,
        kv_cache_precision=executor.kv_cache_precision,
        max_model_len=executor.max_model_len,
        vocab_size=executor.vocab_size,
        block_size=executor.block_size,
        num_blocks=executor.num_blocks,
        has_chat_template=files.chat_template is not None,
        fingerprint=_fingerprint(files, executor),
    )


def _fingerprint(files: ModelFiles, executor: Executor) -> str:
    """Equal for servers whose seeded answers ought to be equal."""
    parts = files.digest, executor.name, executor.precision, executor.kv_cache_precision
    return "fp_" + hashlib.sha256("|".join((*parts, __version__)).encode()).hexdigest()[:12]
