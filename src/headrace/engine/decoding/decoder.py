"""How a step's sequences become one forward, and its predictions their next tokens.

One decoder serves one kind of model; the scheduler, the pool and the text side do not know which.
"""

from dataclasses import dataclass, field
from typing import Protocol

from headrace.engine.scheduler import Step
from headrace.engine.sequence import Sequence
from headrace.executors.executor import Batch, Output
from headrace.generation import TokenLogprob


@dataclass(slots=True)
class Decoded:
    """What a step brought: a token for each sequence that caught up, and scores of prompts."""

    sequences: list[Sequence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    # Scores of a prompt's tokens from the given position on.
    prompt_logprobs: list[tuple[Sequence, int, list[TokenLogprob]]] = field(default_factory=list)


class Decoder(Protocol):
    """Builds a step's batch, before the step is recorded, and reads its output."""

    def batch(self, step: Step) -> Batch: ...

    def num_rows(self, seq: Sequence, num_new_tokens: int) -> int:
        """How many of the output's rows are the sequence's, once its step is recorded."""
        ...

    def decode(self, step: Step, output: Output) -> Decoded: ...
