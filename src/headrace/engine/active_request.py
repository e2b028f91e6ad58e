"""A request while the engine works on it, and the life of each of its sequences."""

from dataclasses import dataclass, field

from headrace.engine.answer import Answer
from headrace.engine.sequence import Sequence
from headrace.generation import Chunk, GenerationRequest, Timing, TokenLogprob, Usage


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """`seed` is the request's own or a random one. Siblings of its first sequence come later."""

    request: GenerationRequest
    prompt_ids: list[int]
    max_tokens: int
    seed: int
    arrived_at: float
    num_unfinished: int = field(init=False)
    has_started: bool = False
    tracks: list["Track"] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_unfinished = self.request.sampling.n

    def add_prompt_logprobs(self, start: int, scores: list[TokenLogprob]) -> None:
        """Record scores of the prompt from token `start` on; some are known after a preemption."""
        num_known = len(self.prompt_logprobs)
        assert start <= num_known
        self.prompt_logprobs += scores[num_known - start :]


@dataclass(eq=False, slots=True)
class Track:
    """One sequence with its answer and its times, in seconds on the caller's clock."""

    owner: ActiveRequest
    seq: Sequence
    answer: Answer
    started_at: float = 0.0
    first_token_at: float | None = None
    batch_size: int = 0

    def last_chunk(self, now: float) -> Chunk:
        assert self.first_token_at is not None
        arrived_at = self.owner.arrived_at
        timing = Timing(
            queue_time=self.owner.tracks[0].started_at - arrived_at,
            time_to_first_token=self.first_token_at - arrived_at,
            generation_time=now - self.started_at,
            batch_size=self.batch_size,
        )
        usage = Usage(
            self.seq.num_prompt_tokens, self.answer.num_tokens, self.seq.num_cached_tokens or 0
        )
        return self.answer.last_chunk(usage, timing)
