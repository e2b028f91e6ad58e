"""What one sequence needs for choosing its tokens, worked out once from its parameters."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.engine.penalties import TokenCounts
from headrace.engine.random_numbers import stream_key
from headrace.generation import SamplingParams

_NO_IDS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_NO_VALUES: NDArray[np.float32] = np.empty(0, dtype=np.float32)


class SamplingState:
    """Plain numbers for the sampler to gather, and the counts that penalties need.

    `seed` is the request's own or a random one; `stop_ids` may not be chosen before `min_tokens`.
    """

    __slots__ = (
        "always_needs_logits",
        "bias_ids",
        "bias_values",
        "counts",
        "key",
        "min_tokens",
        "params",
        "stop_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        index: int,
        prompt_ids: Sequence[int],
        stop_ids: Iterable[int],
    ) -> None:
        self.params = params
        self.key = stream_key(seed, index) if params.temperature > 0 else 0
        self.bias_ids, self.bias_values = _NO_IDS, _NO_VALUES
        if params.logit_bias:
            self.bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
            self.bias_values = np.fromiter(params.logit_bias.values(), np.float32)
        self.min_tokens = params.min_tokens
        self.stop_ids = np.fromiter(stop_ids, np.int64) if params.min_tokens else _NO_IDS
        self.counts = _token_counts(params, prompt_ids)
        self.always_needs_logits = (
            params.temperature > 0
            or params.logprobs is not None
            or self.counts is not None
            or bool(params.logit_bias)
        )


def _token_counts(params: SamplingParams, prompt_ids: Sequence[int]) -> TokenCounts | None:
    if params.repetition_penalty != 1.0:
        return TokenCounts(prompt_ids)
    if params.presence_penalty or params.frequency_penalty:
        return TokenCounts(())
    return None
