"""How large a paged KV cache may be, and the context that it holds. Knows no tensors."""

from dataclasses import dataclass

import structlog

from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.modelfiles.config import ModelConfig

log = structlog.get_logger("headrace.executors")

MIN_AUTO_LEN = 2048  # tokens; a shorter context is served only where it was asked for
MIN_AUTO_MEMORY = 320 << 20


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Blocks of a cache, and the longest context, which always fits into them."""

    num_blocks: int
    max_model_len: int


def kv_budget(
    model: ModelConfig,
    config: ExecutorConfig,
    *,
    block_size: int,
    bytes_per_block: int,
    available: int,
    weight_bytes: int,
) -> KVBudget:
    """Size the cache for the machine; ConfigurationError when what was asked for does not fit."""
    length = _max_model_len(model, config)
    num_blocks = budgeted_blocks(
        model,
        config,
        block_size=block_size,
        bytes_per_block=bytes_per_block,
        available=available,
        weight_bytes=weight_bytes,
    )
    held = min(length, num_blocks * block_size)
    if config.max_model_len is not None and held < length:
        raise ConfigurationError(
            f"max_model_len is {length}, but kv_cache_memory holds {held} tokens",
            param="max_model_len",
        )
    if held < length:
        _accept_shortened(length, held, config)
    return KVBudget(num_blocks, held)


def budgeted_blocks(
    model: ModelConfig,
    config: ExecutorConfig,
    *,
    block_size: int,
    bytes_per_block: int,
    available: int,
    weight_bytes: int,
) -> int:
    """The blocks of a `kv_budget`, whatever context they hold."""
    return num_blocks_for(
        config.kv_cache_memory,
        bytes_per_block=bytes_per_block,
        available=available,
        weight_bytes=weight_bytes,
        most=config.max_num_seqs * -(-_max_model_len(model, config) // block_size),
    )


def num_blocks_for(
    memory: int | None, *, bytes_per_block: int, available: int, weight_bytes: int, most: int
) -> int:
    """Blocks in `memory` bytes, but no more than the `most` that can be in use.

    By default as many bytes as the weights have, at least 320 MiB, at most a quarter of what is
    available.
    """
    if memory is None:
        memory = min(available // 4, max(MIN_AUTO_MEMORY, weight_bytes))
        return max(1, min(memory // bytes_per_block, most))
    if memory < bytes_per_block:
        raise ConfigurationError(
            f"kv_cache_memory is {memory} bytes, but one block of this model takes"
            f" {bytes_per_block}",
            param="kv_cache_memory",
        )
    return min(memory // bytes_per_block, most)


def _accept_shortened(length: int, held: int, config: ExecutorConfig) -> None:
    """Say that memory shortens the context, or refuse a context too short to be meant."""
    if config.kv_cache_memory is None and held < min(length, MIN_AUTO_LEN):
        raise ConfigurationError(
            f"the memory available holds a context of {held} tokens of the model's {length}; free"
            " memory, or set kv_cache_memory",
            param="kv_cache_memory",
        )
    log.warning("executor.context_shortened", model_len=length, max_model_len=held)


def _max_model_len(model: ModelConfig, config: ExecutorConfig) -> int:
    if config.max_model_len is None:
        return model.max_position_embeddings
    if config.max_model_len > model.max_position_embeddings:
        raise ConfigurationError(
            f"max_model_len is {config.max_model_len}, but the model was made for"
            f" {model.max_position_embeddings} tokens",
            param="max_model_len",
        )
    return config.max_model_len
