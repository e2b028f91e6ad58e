"""How far the answer to one request has come, so that another worker can go on with it."""

import time
from array import array

import msgspec

from headrace.generation import Answered, Chunk, GenerationRequest, Timing


class Resumable:
    """What has arrived of each of a request's sequences. Times are seconds of the machine's clock.

    With `echo` the first chunk of a sequence is its prompt, which is no part of the answer.
    """

    __slots__ = ("_echo", "_first_at", "_num_resumptions", "_sent_at", "_sequences")

    def __init__(self, request: GenerationRequest) -> None:
        self._echo = request.sampling.echo
        self._sequences: list[_Sequence | None] = [None] * request.sampling.n
        self._sent_at = time.monotonic()
        self._first_at: float | None = None
        self._num_resumptions = 0

    @property
    def has_begun(self) -> bool:
        return self._first_at is not None

    def note(self, chunk: Chunk) -> Chunk:
        """Count a chunk, and return it as the client is to have it."""
        if (sequence := self._sequences[chunk.index]) is None:
            sequence = self._begin(chunk.index)
            if self._echo:
                return chunk
        sequence.token_ids.extend(chunk.token_ids)
        sequence.num_characters += len(chunk.text)
        if chunk.finish_reason is not None:
            sequence.finish()
            if self._num_resumptions and chunk.timing is not None:
                return msgspec.structs.replace(chunk, timing=self._whole(chunk.timing))
        return chunk

    @property
    def is_whole(self) -> bool:
        return all(each is not None and each.is_finished for each in self._sequences)

    def resume(self, request: GenerationRequest) -> GenerationRequest:
        """The request for another worker."""
        self._num_resumptions += 1
        answered = tuple(None if each is None else each.answered() for each in self._sequences)
        return msgspec.structs.replace(
            request, was_accepted=True, answered=answered if self.has_begun else ()
        )

    def _begin(self, index: int) -> "_Sequence":
        if self._first_at is None:
            self._first_at = time.monotonic()
        self._sequences[index] = sequence = _Sequence()
        return sequence

    def _whole(self, timing: Timing) -> Timing:
        """From the first worker on: the last one knows its own part only."""
        assert self._first_at is not None
        time_to_first_token = self._first_at - self._sent_at
        queue_time = min(timing.queue_time, time_to_first_token)
        return Timing(
            queue_time=queue_time,
            time_to_first_token=time_to_first_token,
            generation_time=time.monotonic() - self._sent_at - queue_time,
            batch_size=timing.batch_size,
        )


class _Sequence:
    __slots__ = ("is_finished", "num_characters", "token_ids")

    def __init__(self) -> None:
        self.token_ids = array("I")
        self.num_characters = 0
        self.is_finished = False

    def finish(self) -> None:
        self.is_finished = True
        self.token_ids = array("I")

    def answered(self) -> Answered:
        return Answered(self.token_ids.tolist(), self.num_characters, self.is_finished)
