"""Which arithmetic a CPU does well, by table. A precision is never swapped for another in silence.

`precision` names how weights are stored. Products run in bf16 where the CPU has such instructions
and the precision allows it, otherwise in fp32 on the weights as stored.
"""

from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigurationError
from headrace.executors.cpu import Machine
from headrace.executors.executor import ExecutorConfig

Storage = Literal["fp32", "bf16", "int8"]
KVPrecision = Literal["fp32", "fp16", "bf16", "u8"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are stored, products computed and keys and values kept."""

    weights: Storage
    compute: Literal["f32", "bf16"]
    kv_cache: KVPrecision


OPENVINO_KV = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "u8": "u8"}


def choose_precision(config: ExecutorConfig, machine: Machine) -> Precision:
    weights: Storage = "bf16" if config.precision == "auto" else config.precision
    compute: Literal["f32", "bf16"] = "bf16" if machine.has_bf16 and weights != "fp32" else "f32"
    return Precision(weights, compute, _kv_precision(config, machine, compute))


def _kv_precision(config: ExecutorConfig, machine: Machine, compute: str) -> KVPrecision:
    asked = config.kv_cache_precision
    if asked == "auto":
        return "bf16" if compute == "bf16" else ("fp32" if config.precision == "fp32" else "fp16")
    if asked == "bf16" and compute != "bf16":
        raise ConfigurationError(
            "kv_cache_precision 'bf16' needs a precision other than 'fp32' and a CPU with bf16"
            f" instructions ({machine.model_name}): use 'auto', 'fp32' or 'u8'",
            param="kv_cache_precision",
        )
    return asked
