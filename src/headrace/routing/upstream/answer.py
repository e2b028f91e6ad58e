"""Turns the events of one streamed answer into chunks. Knows no transport and no clock.

The last piece of each choice waits for the usage, which upstreams send last of all. So whoever has
any of a choice's last tokens knows that it has ended, and what was sent of an answer that breaks
off can be gone on with. An answer that ends without a finish reason of each choice is broken, and
so is one that ends in a way that we have no word for.
"""

from collections.abc import Mapping

from headrace.errors import InvalidRequestError
from headrace.generation import Chunk, FinishReason, GenerationRequest, Timing, TokenLogprob
from headrace.routing.upstream.choice import Choice
from headrace.routing.upstream.counting import usages
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.events import Event
from headrace.routing.upstream.refusals import Refusals
from headrace.routing.upstream.wire import (
    ChoiceBody,
    EventBody,
    UsageBody,
    decode_event,
    token_logprobs,
)

DONE = b"[DONE]"
MAX_ANSWER_SIZE = 256 << 20  # bytes that its chunks may take, for whoever collects them
_CHUNK_SIZE = 64  # of one without text
_ERROR_NAME = b"error"
_CONTENT_FILTER = "content_filter"
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "eos_token": "stop",  # text-generation-inference's
    "stop_sequence": "stop",
}


class AnswerReader:
    """Reads one answer. Times are monotonic seconds; `started` is when it was asked for."""

    def __init__(self, request: GenerationRequest, refusals: Refusals, started: float) -> None:
        self._request = request
        self._refusals = refusals
        self._started = started
        self._first_at: float | None = None
        self._choices = [Choice(request, index) for index in range(request.sampling.n)]
        self._usage: UsageBody | None = None
        self._size = 0
        self.is_complete = False
        """Whether the last chunks have been given."""

    @property
    def has_ended(self) -> bool:
        """Whether every choice has; nothing but the usage may still come."""
        return all(choice.has_ended for choice in self._choices)

    def read(self, event: Event, now: float) -> list[Chunk]:
        """The chunks of an event; raises the error that it tells of."""
        if self.is_complete:
            return []
        if event.data == DONE:
            return self.end(now)
        if event.name == _ERROR_NAME:
            raise self._refusals.of_event(event.data)
        body = self._decode(event.data)
        if body.usage is not None:
            self._usage = body.usage
        assert body.choices is not None
        self._size += sum(_CHUNK_SIZE + len(choice.added) for choice in body.choices)
        self._size += 0 if self._request.sampling.logprobs is None else len(event.data)
        if self._size > MAX_ANSWER_SIZE:
            raise self._broken("its answer has no end")
        chunks = [chunk for choice in body.choices for chunk in self._chunks(choice, now)]
        if not body.choices and body.usage is not None and self.has_ended:
            chunks += self.end(now)
        return chunks

    def end(self, now: float) -> list[Chunk]:
        """The last chunks, once the upstream has said that it has no more."""
        if self.is_complete:
            return []
        if not self.has_ended:
            raise self._broken("its answer ended before it was whole")
        self.is_complete = True
        choices = [choice for choice in self._choices if not choice.was_finished]
        known = usages(self._request, self._usage, [choice.num_tokens for choice in choices])
        timing = self._timing(now)
        return [
            choice.last_chunk(usage, timing) for choice, usage in zip(choices, known, strict=True)
        ]

    def _decode(self, data: bytes) -> EventBody:
        try:
            body = decode_event(data)
        except (ValueError, RecursionError):
            raise self._broken("an event of its answer makes no sense") from None
        if body.error is not None:
            raise self._refusals.of_event(data)
        if body.choices is None:
            raise self._broken("an event of its answer has neither choices nor an error")
        return body

    def _chunks(self, body: ChoiceBody, now: float) -> list[Chunk]:
        choice, logprobs = self._choice(body.index), self._logprobs(body)
        is_empty = not (body.added or body.token_ids or logprobs)
        if choice.has_ended and not is_empty:
            raise self._broken("its answer goes on after its end")
        if self._first_at is None and not is_empty:
            self._first_at = now
        if body.finish_reason is not None and not choice.has_ended:
            choice.finish(self._finish_reason(body.finish_reason), body.stop_reason)
        return [] if is_empty else choice.add(body.added, body.token_ids or [], logprobs)

    def _choice(self, index: int) -> Choice:
        if not 0 <= index < len(self._choices):
            raise self._broken(f"its answer has a choice {index} that nobody asked for")
        return self._choices[index]

    def _finish_reason(self, reason: str) -> FinishReason:
        if reason == _CONTENT_FILTER:  # what was asked, and not the upstream, is at fault
            raise InvalidRequestError(
                self._refusals.sentence("its content filter ended the answer")
            )
        known = _FINISH_REASONS.get(reason)
        if known is None:
            raise self._broken(f"its answer ended by {reason[:40]!r}")
        return known

    def _logprobs(self, body: ChoiceBody) -> list[TokenLogprob] | None:
        num_top = self._request.sampling.logprobs
        if num_top is None or body.logprobs is None:
            return None
        try:
            return token_logprobs(body.logprobs, body.token_ids, num_top)
        except ValueError:
            raise self._broken("the log-probabilities of its answer make no sense") from None

    def _timing(self, now: float) -> Timing:
        """As seen from here."""
        first_at = now if self._first_at is None else self._first_at
        return Timing(
            queue_time=None,
            time_to_first_token=first_at - self._started,
            generation_time=now - self._started,
            batch_size=None,
        )

    def _broken(self, complaint: str) -> UpstreamBrokenError:
        return UpstreamBrokenError(self._refusals.sentence(complaint))
