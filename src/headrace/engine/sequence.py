"""One sequence as the scheduler sees it: its tokens, how far computed, where their KV lives."""

from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.engine.block_pool import Digest
from headrace.engine.sampling_state import SamplingState


class Status(Enum):
    """Where a sequence is in its life; a preempted one waits again."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False, slots=True)
class Sequence:
    """Grows by its answer's tokens. `arrival` orders sequences; a later one is younger."""

    request_id: str
    index: int
    token_ids: list[int]
    sampling: SamplingState
    root_digest: Digest
    scores_prompt: bool = False  # a prediction is wanted after every prompt token
    arrival: int = 0
    urgency: int = 0
    status: Status = Status.WAITING
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # of the prompt; None until first scheduled
    num_shareable_blocks: int = 0
    block_table: list[int] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_caught_up(self) -> bool:
        return len(self.token_ids) == self.num_computed_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Tokens the model has not seen: the whole prompt at first, one a step later."""
        return len(self.token_ids) - self.num_computed_tokens
