"""What one sequence needs for choosing its tokens, worked out once from its parameters."""

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.engine import token_edits
from headrace.engine.random_numbers import stream_key, uniforms
from headrace.engine.token_edits import TokenEdits
from headrace.executors.executor import Sampling
from headrace.generation import SamplingParams

_MOST = 2**31 - 1


class SamplingState:
    """Plain numbers to gather for a step, and the edits of its logits.

    `seed` is the request's own or a random one; `stop_ids` may not be chosen before `min_tokens`.
    """

    __slots__ = ("always_sampled", "edits", "key", "min_tokens", "numbers", "params")

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
        self.min_tokens = params.min_tokens
        num_top = -1 if params.logprobs is None else params.logprobs
        self.numbers = (
            params.temperature,
            params.top_p,
            params.min_p,
            min(params.top_k, _MOST),
            num_top,
        )
        penalizes = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )
        edits = penalizes or bool(params.logit_bias)
        self.edits = (
            TokenEdits(params, prompt_ids, stop_ids) if edits or params.min_tokens else None
        )
        self.always_sampled = params.temperature > 0 or params.logprobs is not None or edits

    def is_sampled(self, position: int) -> bool:
        """Whether more is wanted of token `position` of the answer than the likeliest one."""
        return self.always_sampled or position < self.min_tokens


def sampling(
    states: Sequence[SamplingState],
    positions: Sequence[int],
    targets: Sequence[int],
    vocab_size: int,
) -> Sampling:
    """What is wanted of rows, row i being token `positions[i]` of its sequence's answer.

    A row with a target has no edits: a scored prompt's rows would repeat the sequence's each.
    """
    numbers = np.array([state.numbers for state in states], dtype=np.float64).T.copy()
    temperatures, top_p, min_p, top_k, num_top = numbers
    return Sampling(
        temperatures,
        top_p,
        min_p,
        uniforms(
            np.array([state.key for state in states], dtype=np.uint64),
            np.array(positions, dtype=np.uint64),
        ),
        top_k.astype(np.int32),
        np.minimum(num_top, vocab_size).astype(np.int32),
        np.array(targets, dtype=np.int32),
        token_edits.join(
            [
                state.edits if target < 0 else None
                for state, target in zip(states, targets, strict=True)
            ],
            positions,
        ),
    )
