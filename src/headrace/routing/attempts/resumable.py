"""How far the answer to one request has come, so that another endpoint can go on with it.

Knows neither endpoints nor how they are asked: it counts what arrived and which tries were in vain.
"""

import io
import random
import time
from array import array

import msgspec

from headrace.errors import WorkerDiedError
from headrace.generation import Answered, Chunk, GenerationRequest, Timing

MAX_TRIES_WITHOUT_PROGRESS = 3  # then the request is taken for what killed the workers
MAX_DEATHS = 10  # of workers that had a request, whatever came of it
MAX_TEXT = 1 << 20  # characters, of at most four bytes each


class Resumable:
    """What has arrived of each of a request's sequences. Times are seconds of the machine's clock.

    With `echo` the first chunk of a sequence is its prompt, which is no part of the answer.
    `num_tries_without_progress` are the last ones in a row that ended with their worker.
    """

    __slots__ = (
        "_echo",
        "_first_at",
        "_has_moved",
        "_is_trusted",
        "_knows_tokens",
        "_num_tries",
        "_sent_at",
        "_sequences",
        "_tells_tokens",
        "_text",
        "num_deaths",
        "num_tries_without_progress",
    )

    def __init__(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        self._echo = sampling.echo
        self._sequences = _begun_elsewhere(request)
        self._text = _text_before(request)
        self._sent_at = time.monotonic()
        self._first_at: float | None = None
        self._num_tries = 0
        self._tells_tokens = True
        self._is_trusted = True
        self._has_moved = False
        self._knows_tokens = request.answered_text is None or bool(request.answered)
        self.num_deaths = 0
        self.num_tries_without_progress = 0

    @property
    def has_begun(self) -> bool:
        return self._first_at is not None

    @property
    def is_whole(self) -> bool:
        return all(each is not None and each.is_finished for each in self._sequences)

    @property
    def knows_tokens(self) -> bool:
        """Whether they have come; those that another server only promised have not."""
        is_untold = any(each is not None and each.is_untold for each in self._sequences)
        return self._knows_tokens and (self._is_trusted or not is_untold)

    @property
    def text(self) -> str | None:
        """The text so far; None where no prompt can be made of it.

        So it is with several sequences, with an echo, with a request that was itself one to go on
        after tokens, and past `MAX_TEXT`.
        """
        return None if self._text is None else self._text.getvalue()

    def begin_try(self, *, tells_tokens: bool, is_trusted: bool = True) -> None:
        """An endpoint has it from now on, which is said to tell every token, or is not.

        One that is not trusted has to tell some before it is believed.
        """
        self._num_tries += 1
        self._knows_tokens = self.knows_tokens
        for sequence in filter(None, self._sequences):
            sequence.begin_try()
        self._tells_tokens, self._is_trusted = tells_tokens, is_trusted
        self._has_moved = False

    def note(self, chunk: Chunk) -> Chunk:
        """Count a chunk, and return it as the client is to have it."""
        self._has_moved = True
        if self._first_at is None:
            self._first_at = time.monotonic()
        if (sequence := self._sequences[chunk.index]) is None:
            sequence = self._begin(chunk.index)
            if self._echo:
                # Where another server's prompt ends and its answer begins, nobody tells.
                self._knows_tokens = self._knows_tokens and self._tells_tokens
                return chunk
        sequence.token_ids.extend(chunk.token_ids)
        if text := chunk.text:
            sequence.num_characters += len(text)
            # Who tells every token may do so later: text may end within one.
            if not (chunk.token_ids or self._tells_tokens):
                self._knows_tokens = False
            if self._text is not None:
                self._text.write(text)
                if sequence.num_characters > MAX_TEXT:
                    self._text = None
        if chunk.finish_reason is not None:
            sequence.finish()
            if self._num_tries > 1 and chunk.timing is not None:
                return msgspec.structs.replace(chunk, timing=self._whole(chunk.timing))
        return chunk

    def resume(self, request: GenerationRequest) -> GenerationRequest:
        """The request for an endpoint that goes on after tokens."""
        assert self.knows_tokens, "an answer of which tokens are unknown goes on by its text"
        answered = tuple(None if each is None else each.answered() for each in self._sequences)
        return msgspec.structs.replace(
            request, was_accepted=True, answered=answered if any(answered) else ()
        )

    # Whether it is what kills the workers

    @property
    def is_condemned(self) -> bool:
        return (
            self.num_tries_without_progress >= MAX_TRIES_WITHOUT_PROGRESS
            or self.num_deaths >= MAX_DEATHS
        )

    @property
    def is_suspect(self) -> bool:
        """Whether the next try, or the one of now as long as nothing came of it, is the last.

        Such tries are made one at a time, so that they take no innocent suspect along.
        """
        return not self._has_moved and (
            self.num_tries_without_progress == MAX_TRIES_WITHOUT_PROGRESS - 1
            or self.num_deaths == MAX_DEATHS - 1
        )

    def note_death(self) -> None:
        """The worker that had it is gone; a request of which something came was not why."""
        self.num_deaths += 1
        self.num_tries_without_progress += 1
        if self._has_moved:
            self.num_tries_without_progress = 0
        self._has_moved = False

    def died_of_it(self, reason: str) -> WorkerDiedError:
        """What the client of a condemned request is told."""
        return WorkerDiedError(
            f"{reason}; {self.num_deaths} workers in a row ended with this request"
        )

    def _begin(self, index: int) -> "_Sequence":
        if self._first_at is None:
            self._first_at = time.monotonic()
        self._sequences[index] = sequence = _Sequence()
        return sequence

    def _whole(self, timing: Timing) -> Timing:
        """From the first endpoint on: the last one knows its own part only."""
        assert self._first_at is not None
        time_to_first_token = self._first_at - self._sent_at
        queue_time = timing.queue_time
        if queue_time is not None:
            queue_time = min(queue_time, time_to_first_token)
        return Timing(
            queue_time=queue_time,
            time_to_first_token=time_to_first_token,
            generation_time=time.monotonic() - self._sent_at - (queue_time or 0.0),
            batch_size=timing.batch_size,
        )


class _Sequence:
    """Of what came before this try it knows how much that was."""

    __slots__ = (
        "_num_characters_before",
        "_num_tokens_before",
        "is_finished",
        "num_characters",
        "token_ids",
    )

    def __init__(self) -> None:
        self.token_ids = array("I")
        self.num_characters = 0
        self.is_finished = False
        self.begin_try()

    @property
    def is_untold(self) -> bool:
        """Whether the endpoint that has it now has told text and no token at all."""
        return (
            not self.is_finished
            and self.num_characters > self._num_characters_before
            and len(self.token_ids) == self._num_tokens_before
        )

    def begin_try(self) -> None:
        self._num_characters_before = self.num_characters
        self._num_tokens_before = len(self.token_ids)

    @classmethod
    def of(cls, answered: Answered) -> "_Sequence":
        sequence = cls()
        sequence.token_ids = array("I", answered.token_ids)
        sequence.num_characters = answered.num_characters
        sequence.is_finished = answered.is_finished
        sequence.begin_try()
        return sequence

    def finish(self) -> None:
        self.is_finished = True
        self.token_ids = array("I")

    def answered(self) -> Answered:
        return Answered(self.token_ids.tolist(), self.num_characters, self.is_finished)


def _begun_elsewhere(request: GenerationRequest) -> list[_Sequence | None]:
    """What the client has already as its request comes to us."""
    begun = [None if each is None else _Sequence.of(each) for each in request.answered]
    return begun + [None] * (request.sampling.n - len(begun))


def _text_before(request: GenerationRequest) -> io.StringIO | None:
    """The text that this answer adds to; None where it is not all of it."""
    text = io.StringIO()
    if request.answered_text is not None:
        text.write(request.answered_text)
    elif request.sampling.n > 1 or request.sampling.echo or request.answered:
        return None
    return text


def seeded(request: GenerationRequest) -> GenerationRequest:
    """With a seed of its own where it has none: another worker must draw the same tokens."""
    sampling = request.sampling
    if sampling.seed is not None or sampling.temperature == 0:
        return request
    sampling = msgspec.structs.replace(sampling, seed=random.getrandbits(63))
    return msgspec.structs.replace(request, sampling=sampling)
