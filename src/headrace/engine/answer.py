"""The text side of one sequence: tokens in, chunks out, stopping where the request says.

A token is handed out with the chunk that holds the end of its text, so a chunk's tokens and
log-probabilities stand for text that has been sent. Tokens that end an answer have no text.
"""

from collections.abc import Collection

from headrace.engine.stop_strings import StopStrings
from headrace.engine.vocabulary import TextStream
from headrace.generation import Chunk, FinishReason, SamplingParams, Timing, TokenLogprob, Usage


class Answer:
    """Grows token by token until `finish_reason` is set."""

    __slots__ = (
        "_end",
        "_ends",
        "_index",
        "_is_plain",
        "_last_ids",
        "_logprobs",
        "_max_tokens",
        "_min_tokens",
        "_num_received",
        "_num_sent",
        "_stop_ids",
        "_stops",
        "_text",
        "_text_stream",
        "_token_ids",
        "finish_reason",
        "num_tokens",
        "stop_reason",
    )

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        text_stream: TextStream,
        *,
        max_tokens: int,
        eos_token_ids: Collection[int],
    ) -> None:
        self._index = index
        self._text_stream = text_stream
        self._max_tokens = max_tokens
        self._min_tokens = params.min_tokens
        self._stop_ids = frozenset(params.stop_token_ids)
        self._last_ids = self._stop_ids.union(() if params.ignore_eos else eos_token_ids)
        self._stops = StopStrings(params.stop) if params.stop else None
        self._is_plain = not params.stop and params.logprobs is None  # text goes out as it comes
        # What has been received and not sent: text, tokens, and where the text of each token ends.
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self._ends: list[int] = []  # shorter than the tokens while a character is incomplete
        self._num_received = 0
        self._num_sent = 0
        self._end: int | None = None  # where a stop string cuts the text
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> Chunk | None:
        """Take the next token; return what can be sent, or None when finished or nothing can."""
        self.num_tokens += 1
        if token_id in self._last_ids:
            self._end_by(token_id)
            return None
        text = self._text_stream.push(token_id)
        if self.num_tokens >= self._max_tokens:
            self._hold(token_id, logprob, text)
            if self.finish_reason is None:
                self.finish("length")
            return None
        if text and self._is_plain and not self._token_ids:
            return Chunk(self._index, text, [token_id])
        self._hold(token_id, logprob, text)
        return self._release() if text and self.finish_reason is None else None

    def resume(self, token_ids: Collection[int], num_characters: int) -> None:
        """Go on after tokens, and so many characters, that have been sent before.

        Either may be ahead of the other: another server holds text or tokens back in its own way.
        """
        for token_id in token_ids:
            self.num_tokens += 1
            self._receive(self._text_stream.push(token_id))
        self._text, self._ends = self._text[num_characters:], []
        self._num_sent = num_characters
        self._is_plain = self._is_plain and num_characters == self._num_received

    def finish(self, reason: FinishReason) -> None:
        """End here: nothing more comes, so an incomplete character is sent as it is."""
        self.finish_reason = reason
        self._receive(self._text_stream.flush())

    def last_chunk(self, usage: Usage, timing: Timing) -> Chunk:
        """Everything not sent yet, and how it ended."""
        assert self.finish_reason is not None
        text, logprobs = self._text, self._logprobs
        if self._end is not None:
            text = text[: max(0, self._end - self._num_sent)]
            logprobs = None if logprobs is None else logprobs[: self._num_visible(self._end)]
        return Chunk(
            self._index,
            text,
            self._token_ids,
            logprobs,
            self.finish_reason,
            self.stop_reason,
            usage,
            timing,
        )

    def _end_by(self, token_id: int) -> None:
        self._token_ids.append(token_id)
        self.finish("stop")
        if token_id in self._stop_ids and self._end is None:
            self.stop_reason = token_id

    def _hold(self, token_id: int, logprob: TokenLogprob | None, text: str) -> None:
        self._token_ids.append(token_id)
        if self._logprobs is not None:
            assert logprob is not None
            self._logprobs.append(logprob)
        self._receive(text)

    def _receive(self, text: str) -> None:
        if not text:
            return
        # After a resumption the first characters may have been sent.
        self._text += text[max(0, self._num_sent - self._num_received) :]
        self._num_received += len(text)
        self._ends += [self._num_received] * (len(self._token_ids) - len(self._ends))
        if self._stops is None:
            return
        if self.num_tokens <= self._min_tokens:
            self._stops.skip(text)
        elif (match := self._stops.push(text)) is not None:
            self._end, self.stop_reason = match
            self.finish_reason = "stop"

    def _release(self) -> Chunk | None:
        """What can no longer become part of a stop string."""
        limit = self._num_received if self._stops is None else self._stops.num_safe
        if limit <= self._num_sent:  # under it where a resumption came to another token
            return None
        text, self._text = _split(self._text, limit - self._num_sent)
        self._num_sent = limit
        count = sum(end <= limit for end in self._ends)
        self._ends = self._ends[count:]
        token_ids, self._token_ids = self._token_ids[:count], self._token_ids[count:]
        logprobs = self._logprobs
        if logprobs is not None:
            logprobs, self._logprobs = logprobs[:count], logprobs[count:]
        return Chunk(self._index, text, token_ids, logprobs)

    def _num_visible(self, end: int) -> int:
        """How many of the held tokens begin before the text's end.

        Tokens of one character share its end, so the group that reaches the cut counts whole.
        """
        if end <= self._num_sent:
            return 0
        reached = min((known for known in self._ends if known >= end), default=end)
        return sum(known <= reached for known in self._ends)


def _split(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]
