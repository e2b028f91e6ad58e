"""Which arithmetic a CPU does well, by table. A precision is never swapped for another in silence.

`precision` names how weights are stored. Products run in bf16 where the CPU has such instructions
and the precision allows it, otherwise in fp32 on the weights as stored.
"""

from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import Machine

Storage = Literal["fp32", "bf16", "int8"]
Compute = Literal["f32", "bf16"]
KVPrecision = Literal["fp32", "fp16", "bf16", "u8"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are stored, products computed and keys and values kept."""

    weights: Storage
    compute: Compute
    kv_cache: KVPrecision


OPENVINO_KV = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "u8": "u8"}

# Measured in docs/decisions/020-openvino-precision.md: with bf16 instructions int8 weights bring no
# speed; without them bf16 weights are unpacked to fp32 and int8 ones read a quarter of the memory.
_AUTO_WEIGHTS: dict[bool, Storage] = {True: "bf16", False: "int8"}
_AUTO_KV: dict[str, KVPrecision] = {"bf16": "bf16", "f32": "fp16"}
_WEIGHTS: dict[str, Storage] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "w8a16": "int8"}
_KV: dict[str, KVPrecision] = {
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "u8": "u8",
    "int8": "u8",
}


def choose_precision(config: ExecutorConfig, machine: Machine) -> Precision:
    """Fill in what was left to us; ConfigurationError for what this CPU cannot do."""
    weights = _weights(config, machine)
    compute: Compute = "bf16" if machine.has_bf16 and weights != "fp32" else "f32"
    return Precision(weights, compute, _kv_precision(config, machine, weights, compute))


def _weights(config: ExecutorConfig, machine: Machine) -> Storage:
    if config.precision == "auto":
        return _AUTO_WEIGHTS[machine.has_bf16]
    if config.precision not in _WEIGHTS:
        raise ConfigurationError(
            f"precision {config.precision!r} needs the native executor; OpenVINO has 'fp32',"
            " 'bf16' and 'int8'",
            param="precision",
        )
    return _WEIGHTS[config.precision]


def _kv_precision(
    config: ExecutorConfig, machine: Machine, weights: Storage, compute: Compute
) -> KVPrecision:
    asked = config.kv_cache_precision
    if asked == "auto":
        return "fp32" if weights == "fp32" else _AUTO_KV[compute]
    if asked == "bf16" and compute != "bf16":
        raise ConfigurationError(
            "kv_cache_precision 'bf16' needs a precision other than 'fp32' and a CPU with bf16"
            f" instructions ({machine.model_name}): use 'auto', 'fp32', 'fp16' or 'u8'",
            param="kv_cache_precision",
        )
    if asked == "fp16" and compute != "f32":
        raise ConfigurationError(
            "kv_cache_precision 'fp16' goes with products in fp32, and here they are bf16:"
            " use 'auto', 'bf16' or 'u8'",
            param="kv_cache_precision",
        )
    return _KV[asked]
