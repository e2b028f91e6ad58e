"""A request while the engine works on it, and the life of each of its sequences."""

from dataclasses import dataclass, field

from headrace.engine.answer import Answer
from headrace.engine.sequence import Sequence
from headrace.generation import Answered, Chunk, GenerationRequest, Timing, TokenLogprob, Usage


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
        self.num_unfinished = len(self.indices)

    @property
    def indices(self) -> list[int]:
        """Of its sequences, those whose answers are not whole yet."""
        every = ((index, self.answered(index)) for index in range(self.request.sampling.n))
        return [index for index, known in every if known is None or not known.is_finished]

    def answered(self, index: int) -> Answered | None:
        """What was sent of one sequence before the request came here."""
        return self.request.answered[index] if self.request.answered else None

    def owes_echo(self, index: int) -> bool:
        return self.request.sampling.echo and self.answered(index) is None

    @property
    def owes_scores(self) -> bool:
        """Whether an echo with log-probabilities is still to be sent."""
        is_scored = self.request.sampling.logprobs is not None
        return is_scored and any(map(self.owes_echo, self.indices))

    def add_prompt_logprobs(self, start: int, scores: list[TokenLogprob]) -> None:
        """Record scores from token `start` on; some are known after a preemption.

        Those of tokens that were answered elsewhere follow the prompt's, and nobody wants them.
        """
        num_known, num_wanted = len(self.prompt_logprobs), len(self.prompt_ids)
        assert min(start, num_wanted) <= num_known
        self.prompt_logprobs += scores[num_known - start : num_wanted - start]


@dataclass(eq=False, slots=True)
class Track:
    """One sequence with its answer and its times, in seconds on the caller's clock."""

    owner: ActiveRequest
    seq: Sequence
    answer: Answer
    started_at: float = 0.0
    first_token_at: float | None = None
    batch_size: int = 0

    def resume(self, answered: Answered) -> None:
        """Go on as if what another worker sent had been generated here."""
        self.answer.resume(answered.token_ids, answered.num_characters)
        self.seq.token_ids += answered.token_ids
        if (edits := self.seq.sampling.edits) is not None:
            for token_id in answered.token_ids:
                edits.add(token_id)

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
            self.seq.num_prompt_tokens,
            self.answer.num_tokens,
            min(self.seq.num_cached_tokens or 0, self.seq.num_prompt_tokens),
        )
        return self.answer.last_chunk(usage, timing)
