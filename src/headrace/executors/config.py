"""How a model is to be computed, as plain values. The api process knows this file."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How a model is to be computed. `None` and "auto" let the executor choose for the machine."""

    executor: Literal["auto", "openvino"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    kv_cache_precision: Literal["auto", "fp32", "fp16", "bf16", "u8"] = "auto"
    kv_cache_memory: int | None = None  # bytes
    num_threads: int | None = None
    max_model_len: int | None = None  # tokens
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
