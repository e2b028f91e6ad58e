"""Reads what the client has of a stream that broke off, out of the events that were passed on.

Costs nothing until it happens. What chunks have no word for, such as reasoning and calls of tools,
cannot be gone on with.
"""

from collections.abc import Iterable

import msgspec

from headrace.api.openai.stream import Head
from headrace.generation import Answered, Chunk, GenerationRequest
from headrace.routing.upstream.events import EventParser
from headrace.routing.upstream.wire import LogprobsBody, TokenId, token_logprobs

_DONE = b"[DONE]"
_WORDS = frozenset({"role", "content"})
_NOTHING = frozenset({b"null", b'""', b"[]"})


class SentChoice(msgspec.Struct):
    """What an event added to a choice."""

    index: int = 0
    delta: dict[str, msgspec.Raw] = {}
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    logprobs: LogprobsBody | None = None


class SentEvent(msgspec.Struct):
    """One event, with what each of them repeats."""

    id: str
    created: int
    model: str
    choices: list[SentChoice]
    system_fingerprint: str | None = None


class Sent:
    """What the client has."""

    def __init__(self, events: list[SentEvent], request: GenerationRequest) -> None:
        first = events[0]
        self.head = Head(id=first.id, created=first.created, model=first.model)
        self.fingerprint = first.system_fingerprint
        choices = [choice for event in events for choice in event.choices]
        self.chunks = [_chunk(choice, request.sampling.logprobs) for choice in choices]
        self.finished = {choice.index for choice in choices if choice.finish_reason is not None}
        self._is_told = all(
            choice.token_ids is not None
            for choice, chunk in zip(choices, self.chunks, strict=True)
            if chunk.text
        )

    @property
    def tells_tokens(self) -> bool:
        """Whether the tokens of all text are known; text without any has some all the same."""
        known = [self.answered(index) for index in {chunk.index for chunk in self.chunks}]
        return self._is_told and not any(
            each.num_characters and not each.token_ids for each in known if each is not None
        )

    def answered(self, index: int) -> Answered | None:
        """Of one choice, None where the client has nothing of it."""
        if index in self.finished:
            return Answered([], 0, is_finished=True)
        chunks = [chunk for chunk in self.chunks if chunk.index == index]
        if not any(chunk.text or chunk.token_ids for chunk in chunks):
            return None
        token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        return Answered(token_ids, len(self.text(index)))

    def text(self, index: int) -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.index == index)


def read_sent(kept: bytes, request: GenerationRequest) -> Sent | None:
    """None of what we cannot put into chunks."""
    events = EventParser(max_bytes=len(kept) + 1).feed(kept)
    try:
        found = [_decode(event.data) for event in events if event.data != _DONE]
        return Sent([event for event in found if event.choices], request)
    except (ValueError, RecursionError, IndexError):
        return None


def _decode(data: bytes) -> SentEvent:
    event = _decoder.decode(data)
    _check_words(event.choices)
    return event


def _check_words(choices: Iterable[SentChoice]) -> None:
    for choice in choices:
        for name, value in choice.delta.items():
            if name not in _WORDS and bytes(value) not in _NOTHING:
                raise ValueError(f"a chunk has no {name}")


def _chunk(choice: SentChoice, num_top: int | None) -> Chunk:
    content = choice.delta.get("content")
    text = choice.text if content is None else msgspec.json.decode(content, type=str | None) or ""
    logprobs = None
    if num_top is not None and choice.logprobs is not None:
        logprobs = token_logprobs(choice.logprobs, choice.token_ids, num_top)
    return Chunk(choice.index, text, choice.token_ids or [], logprobs)


_decoder = msgspec.json.Decoder(SentEvent)
