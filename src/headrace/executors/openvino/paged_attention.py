"""The one internal op we use, its inputs by name, and the version for which they are right."""

from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino.op as internal_op

from headrace.errors import ConfigurationError
from headrace.executors.openvino.literals import Literals

OPENVINO_VERSION = "2026.4"


def check_version() -> None:
    """The op's inputs change between minor releases, and a wrong count is a segmentation fault."""
    installed = ov.get_version()
    if not installed.startswith(f"{OPENVINO_VERSION}."):
        raise ConfigurationError(
            f"the OpenVINO executor is built for OpenVINO {OPENVINO_VERSION}, but"
            f" {installed.split('-')[0]} is installed: pip install 'openvino=={OPENVINO_VERSION}.*'"
        )


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The graph inputs that say which tokens belong to which sequence and where their KV lies."""

    past_lens: ov.Node  # (num_seqs,) tokens already in the cache
    subsequence_begins: ov.Node  # (num_seqs + 1,) first new token of each sequence
    block_indices: ov.Node  # all block tables, one after another
    block_indices_begins: ov.Node  # (num_seqs + 1,)
    max_context_len: ov.Node  # ()


def paged_attention(
    query: ov.Node,  # (num_tokens, num_heads * head_dim)
    key: ov.Node,  # (num_tokens, num_kv_heads * head_dim)
    value: ov.Node,  # the same
    *,
    key_cache: ov.Node,
    value_cache: ov.Node,
    batch: BatchInputs,
    literals: Literals,
    scale: float,
    window: int,
    num_kv_heads: int,
    head_dim: int,
) -> ov.Node:
    """Write the new keys and values to the cache, then attend: (num_tokens, heads * head_dim)."""
    inputs = [
        query,
        key,
        value,
        key_cache,
        value_cache,
        batch.past_lens,
        batch.subsequence_begins,
        batch.block_indices,
        batch.block_indices_begins,
        literals.number(scale),
        literals.array(np.int32(window)),
        literals.array(_NO_FLOATS),  # alibi slopes
        batch.max_context_len,
        *(literals.array(value) for value in _UNUSED.values()),
    ]
    attention = internal_op._PagedAttentionExtension(  # noqa: SLF001 (there is no public one)
        [node if isinstance(node, ov.Output) else node.output(0) for node in inputs]
    )
    info = attention.get_rt_info()  # the plugin lays the caches out from these four
    info["num_k_heads"] = info["num_v_heads"] = num_kv_heads
    info["k_head_size"] = info["v_head_size"] = head_dim
    return attention.output(0)


_NO_INTS = np.zeros(0, np.int32)
_NO_FLOATS = np.zeros(0, np.float32)

_UNUSED: dict[str, np.ndarray] = {
    "score_aggregation_window": _NO_INTS,
    "rotated_block_indices": _NO_INTS,
    "rotation_deltas": _NO_INTS,
    "rotation_trig_lut": _NO_FLOATS,
    "xattention_threshold": _NO_FLOATS,
    "xattention_block_size": np.array(0, np.int32),
    "xattention_stride": np.array(0, np.int32),
    "sinks": np.zeros((0, 0, 0, 0), np.float32),
    "adaptive_rkv_start_size": np.array(0, np.int32),
    "adaptive_rkv_evictable_sizes": _NO_INTS,
    "adaptive_rkv_diversity_block_set_indices": _NO_INTS,
    "adaptive_rkv_diversity_block_set_indices_begins": _NO_INTS,
    "token_type_ids": _NO_INTS,
    "qq_bias": np.zeros(0, np.uint8),
    "qq_bias_begins": _NO_INTS,
}
