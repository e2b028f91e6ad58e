"""Chunks in the words of OpenAI's API: events of a stream, or one answer.

A streamed token costs a few concatenations: everything around its text is encoded once a request.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.openai.offsets import TextOffsets
from headrace.api.openai.schema import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptTokensDetails,
    TokenLogprobBody,
    TopLogprobBody,
    UsageBody,
)
from headrace.engine.stream import fold_chunks
from headrace.generation import Chunk, ModelInfo, TokenLogprob, Usage

DONE = b"data: [DONE]\n\n"
# JSON has no infinity; OpenAI writes this for tokens that cannot come.
LEAST_LOGPROB = -9999.0

TokenIds = list[int] | UnsetType

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every chunk of one answer repeats."""

    id: str
    created: int
    model: str


class Logprobs(Protocol):
    """Renders log-probabilities of one answer's choices, run after run."""

    def render(
        self, index: int, text: str, logprobs: list[TokenLogprob]
    ) -> ChatLogprobs | CompletionLogprobs: ...


class OpenAIWire:
    """Writes chunks as OpenAI events; `chat_wire` and `completion_wire` say in which dialect."""

    def __init__(
        self,
        dialect: "Dialect",
        head: Head,
        info: ModelInfo,
        *,
        include_usage: bool,
        return_token_ids: bool = False,
    ) -> None:
        self._dialect = dialect
        self._head = head
        self._fingerprint = info.fingerprint
        self._logprobs = dialect.logprobs()
        self._include_usage = include_usage
        self._return_token_ids = return_token_ids
        self._prefixes: dict[int, bytes] = {}
        self._opening = self._event_opening()
        self._closing = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._plain = dialect.after_text + b',"logprobs":null,"finish_reason":null'
        self._end = b"}]" + self._closing
        self._plain_end = self._plain + self._end

    def event(self, chunk: Chunk) -> bytes:
        prefix = self._prefixes.get(chunk.index)
        if prefix is None:
            return self._first_event(chunk)
        if chunk.finish_reason is not None or chunk.logprobs is not None:
            return self._full_event(prefix, chunk)
        if not self._return_token_ids:
            return prefix + _encode(chunk.text) + self._plain_end if chunk.text else b""
        if not (chunk.text or chunk.token_ids):
            return b""
        start = prefix + _encode(chunk.text) + self._plain
        return start + b',"token_ids":' + _encode(chunk.token_ids) + self._end

    def ending(self, usage: Usage | None) -> bytes:
        if not self._include_usage or usage is None:
            return DONE
        opening = self._opening.removesuffix(b'{"index":')
        return opening + b'],"usage":' + _encode(usage_body(usage)) + b"}\n\n" + DONE

    def answer(self, chunks: list[Chunk], usage: Usage | None) -> bytes:
        choices = sorted(fold_chunks(chunks), key=lambda chunk: chunk.index)
        return _encode(
            self._dialect.answer(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                system_fingerprint=self._fingerprint,
                choices=[self._choice(chunk) for chunk in choices],
                usage=None if usage is None else usage_body(usage),
            )
        )

    def _choice(self, chunk: Chunk) -> ChatChoice | CompletionChoice:
        token_ids = chunk.token_ids if self._return_token_ids else UNSET
        return self._dialect.choice(chunk, self._rendered_logprobs(chunk), token_ids)

    def _first_event(self, chunk: Chunk) -> bytes:
        start = self._opening + b"%d" % chunk.index
        self._prefixes[chunk.index] = start + self._dialect.before_text
        first = start + self._dialect.greeting + self._closing if self._dialect.greeting else b""
        return first + self.event(chunk)

    def _full_event(self, prefix: bytes, chunk: Chunk) -> bytes:
        return b"".join(
            (
                prefix,
                _encode(chunk.text),
                self._dialect.after_text,
                b',"logprobs":',
                _encode(self._rendered_logprobs(chunk)),
                b',"finish_reason":',
                _encode(chunk.finish_reason),
                b',"stop_reason":%s' % _encode(chunk.stop_reason) if chunk.finish_reason else b"",
                b',"token_ids":%s' % _encode(chunk.token_ids) if self._return_token_ids else b"",
                self._end,
            )
        )

    def _rendered_logprobs(self, chunk: Chunk) -> ChatLogprobs | CompletionLogprobs | None:
        if chunk.logprobs is None:
            return None
        return self._logprobs.render(chunk.index, chunk.text, chunk.logprobs)

    def _event_opening(self) -> bytes:
        head = {
            "id": self._head.id,
            "object": self._dialect.chunk_object,
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._fingerprint,
        }
        return b"data: " + _encode(head).removesuffix(b"}") + b',"choices":[{"index":'


class ChatLogprobsRenderer:
    """Chat's format: one object a token."""

    def render(self, _index: int, _text: str, logprobs: list[TokenLogprob]) -> ChatLogprobs:
        return ChatLogprobs([self._token(logprob) for logprob in logprobs])

    def _token(self, logprob: TokenLogprob) -> TokenLogprobBody:
        return TokenLogprobBody(
            token=_shown(logprob.token),
            logprob=_finite(logprob.logprob or 0.0),
            bytes=list(logprob.token),
            top_logprobs=[
                TopLogprobBody(_shown(top.token), _finite(top.logprob), list(top.token))
                for top in logprob.top
            ],
        )


class CompletionLogprobsRenderer:
    """The completions format: parallel lists, with each token's place in the text."""

    def __init__(self) -> None:
        self._offsets = defaultdict[int, TextOffsets](TextOffsets)  # of each choice

    def render(self, index: int, text: str, logprobs: list[TokenLogprob]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tokens=[_distinct(logprob.token) for logprob in logprobs],
            token_logprobs=[
                None if logprob.logprob is None else _finite(logprob.logprob)
                for logprob in logprobs
            ],
            top_logprobs=[self._top(logprob) for logprob in logprobs],
            text_offset=self._offsets[index].extend(text, [logprob.token for logprob in logprobs]),
        )

    def _top(self, logprob: TokenLogprob) -> dict[str, float] | None:
        """The likeliest tokens and the chosen one; None where nothing was predicted."""
        if logprob.logprob is None:
            return None
        likeliest = {_distinct(top.token): _finite(top.logprob) for top in logprob.top}
        return {**likeliest, _distinct(logprob.token): _finite(logprob.logprob)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Where chat and completions differ."""

    id_prefix: str
    chunk_object: Literal["chat.completion.chunk", "text_completion"]
    greeting: bytes  # of each choice's first event, after its index
    before_text: bytes
    after_text: bytes
    logprobs: Callable[[], Logprobs]
    answer: Callable[..., Any]
    choice: Callable[[Chunk, Any, TokenIds], ChatChoice | CompletionChoice]


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptTokensDetails(usage.cached_tokens),
    )


def _chat_choice(chunk: Chunk, logprobs: ChatLogprobs | None, token_ids: TokenIds) -> ChatChoice:
    return ChatChoice(
        index=chunk.index,
        message=AnswerMessage(chunk.text),
        logprobs=logprobs,
        finish_reason=_finish_reason(chunk),
        stop_reason=chunk.stop_reason,
        token_ids=token_ids,
    )


def _completion_choice(
    chunk: Chunk, logprobs: CompletionLogprobs | None, token_ids: TokenIds
) -> CompletionChoice:
    return CompletionChoice(
        index=chunk.index,
        text=chunk.text,
        logprobs=logprobs,
        finish_reason=_finish_reason(chunk),
        stop_reason=chunk.stop_reason,
        token_ids=token_ids,
    )


def _finish_reason(chunk: Chunk) -> Literal["stop", "length"]:
    # What was aborted or failed has been raised before it could be rendered.
    assert chunk.finish_reason in ("stop", "length"), chunk.finish_reason
    return chunk.finish_reason


def _shown(token: bytes) -> str:
    return token.decode(errors="replace")


def _distinct(token: bytes) -> str:
    """The token as a key: parts of characters are written as bytes, so that they differ."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


CHAT = Dialect(
    id_prefix="chatcmpl",
    chunk_object="chat.completion.chunk",
    greeting=b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
    before_text=b',"delta":{"content":',
    after_text=b"}",
    logprobs=ChatLogprobsRenderer,
    answer=ChatCompletion,
    choice=_chat_choice,
)
COMPLETION = Dialect(
    id_prefix="cmpl",
    chunk_object="text_completion",
    greeting=b"",
    before_text=b',"text":',
    after_text=b"",
    logprobs=CompletionLogprobsRenderer,
    answer=Completion,
    choice=_completion_choice,
)
