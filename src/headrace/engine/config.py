"""The limits of one engine, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the scheduler may do at once and how much may wait.

    A step computes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences;
    while some of them decode, at most `max_prompt_share` of that goes to prompts.
    Waiting work is bounded by requests and by tokens; more is refused with a computed retry time.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_prompt_share: float = 0.5
    prefix_caching: bool = True
    max_n: int = 128  # sequences of one request
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1_000_000
