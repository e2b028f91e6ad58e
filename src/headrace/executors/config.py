"""How a model is to be computed, as plain values. The api process knows this file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ExecutorName = Literal["auto", "native", "openvino"]
Precision = Literal["auto", "fp32", "bf16", "int8", "w8a16", "w8a8", "w4a16"]
KVCachePrecision = Literal["auto", "fp32", "fp16", "bf16", "u8", "int8"]

MAX_THREADS = 1024  # of one executor; the kernels take no more
CACHE_FOLDER = "cache"  # of a state_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How a model is to be computed. `None` and "auto" let the executor choose for the machine."""

    executor: ExecutorName = "auto"
    precision: Precision = "auto"
    kv_cache_precision: KVCachePrecision = "auto"
    kv_cache_memory: int | None = None  # bytes
    num_threads: int | None = None
    max_model_len: int | None = None  # tokens
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    cache_dir: Path | None = None  # for what is computed once from a model's files; None: nowhere
