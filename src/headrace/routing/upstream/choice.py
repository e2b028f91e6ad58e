"""One choice of an upstream's answer, from its echo to its end. Knows no events."""

from headrace.generation import (
    Chunk,
    FinishReason,
    GenerationRequest,
    Timing,
    TokenLogprob,
    Usage,
)


class Choice:
    """Gives chunks as text comes, an echo by itself, and keeps the last piece back.

    `num_tokens` counts those that the upstream named, and those of an answer that it goes on with.
    """

    def __init__(self, request: GenerationRequest, index: int) -> None:
        answered = request.answered[index] if request.answered else None
        has_begun = answered is not None or request.answered_text is not None
        self.was_finished = answered is not None and answered.is_finished
        self.num_tokens = 0 if answered is None else len(answered.token_ids)
        self._index = index
        self._prompt = _echo(request) if request.sampling.echo and not has_begun else ""
        self._echoed = ""  # a beginning of the prompt, not given yet
        self._logprobs: list[TokenLogprob] | None = None  # of what is not given yet
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._last = Chunk(index, "", [])

    @property
    def has_ended(self) -> bool:
        return self.was_finished or self._finish_reason is not None

    def finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        """What is added after this, of the same event, is the last."""
        self._finish_reason, self._stop_reason = reason, stop_reason

    def add(
        self, text: str, token_ids: list[int], logprobs: list[TokenLogprob] | None
    ) -> list[Chunk]:
        echo, text = self._without_echo(text)
        if self._prompt:  # nothing of the answer itself yet: its scores come with its text
            self._logprobs = _joined(self._logprobs, logprobs)
            return []
        self.num_tokens += len(token_ids)
        chunk = Chunk(self._index, text, token_ids, _joined(self._logprobs, logprobs))
        self._logprobs = None
        given = [Chunk(self._index, echo, [])] if echo else []
        if self._finish_reason is not None:
            self._last = chunk
            return given
        return [*given, chunk] if text or token_ids or chunk.logprobs else given

    def last_chunk(self, usage: Usage | None, timing: Timing) -> Chunk:
        assert self._finish_reason is not None
        last = self._last
        return Chunk(
            self._index,
            self._echoed + last.text,
            last.token_ids,
            _joined(self._logprobs, last.logprobs),
            self._finish_reason,
            self._stop_reason,
            usage,
            timing,
        )

    def _without_echo(self, text: str) -> tuple[str, str]:
        """The prompt, once all of it is there, and what follows it.

        An upstream may send it with the first token, or piece by piece.
        """
        if not self._prompt:
            return "", text
        self._echoed += text
        if self._prompt.startswith(self._echoed) and self._echoed != self._prompt:
            return "", ""
        at = len(self._prompt) if self._echoed.startswith(self._prompt) else len(self._echoed)
        echo, text = self._echoed[:at], self._echoed[at:]
        self._prompt = self._echoed = ""
        return echo, text


def _echo(request: GenerationRequest) -> str:
    # What the upstream writes for token ids nobody knows here: its first piece is taken as it is.
    return request.prompt if isinstance(request.prompt, str) else ""


def _joined(
    first: list[TokenLogprob] | None, second: list[TokenLogprob] | None
) -> list[TokenLogprob] | None:
    return second if first is None else first + (second or [])
