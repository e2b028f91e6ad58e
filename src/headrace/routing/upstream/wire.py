"""The events of OpenAI's streams as typed data; both chat's and completions' fit one shape."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.generation import TokenLogprob, TopLogprob

_BYTES_PREFIX = "bytes:"

Count = Annotated[int, Meta(ge=0, le=1 << 40)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class TopBody(msgspec.Struct):
    """One likely token of a chat."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenBody(TopBody):
    """A token of a chat, with the likeliest ones at its place."""

    top_logprobs: list[TopBody] | None = None


class LogprobsBody(msgspec.Struct):
    """Chat's list of objects in `content`, or the parallel lists of completions."""

    content: list[TokenBody] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class DeltaBody(msgspec.Struct):
    """What a chat adds. What is neither answer nor refusal, such as reasoning, is passed over."""

    content: str | None = None
    refusal: str | None = None


class ChoiceBody(msgspec.Struct):
    """What an event adds to one choice. `token_ids` is vLLM's and ours."""

    index: int = 0
    delta: DeltaBody | None = None
    text: str | None = None
    logprobs: LogprobsBody | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[TokenId] | None = None

    @property
    def added(self) -> str:
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.refusal or ""


class PromptDetailsBody(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: Count | None = None


class UsageBody(msgspec.Struct):
    """Tokens of a whole request, over all its choices."""

    prompt_tokens: Count
    completion_tokens: Count = 0
    prompt_tokens_details: PromptDetailsBody | None = None

    @property
    def cached_tokens(self) -> int:
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class EventBody(msgspec.Struct):
    """One event: choices, or an error, or at the end the usage."""

    choices: list[ChoiceBody] | None = None
    usage: UsageBody | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(EventBody).decode


def token_logprobs(
    body: LogprobsBody, token_ids: list[int] | None, num_top: int
) -> list[TokenLogprob]:
    """Log-probabilities in our form. ValueError where parallel lists are not equally long."""
    if body.content is not None:
        ids = _ids(token_ids, len(body.content))
        return [_of_chat(*each, num_top) for each in zip(ids, body.content, strict=True)]
    tokens, scores = body.tokens or [], body.token_logprobs or []
    tops = body.top_logprobs or [None] * len(tokens)
    columns = zip(_ids(token_ids, len(tokens)), tokens, scores, tops, strict=True)
    return [_of_completion(*row, num_top) for row in columns]


def _ids(token_ids: list[int] | None, number: int) -> Sequence[int | None]:
    """The chosen tokens' ids, unless an echo's log-probabilities are among them."""
    if token_ids is None or len(token_ids) != number:
        return [None] * number
    return token_ids


def _of_chat(token_id: int | None, body: TokenBody, num_top: int) -> TokenLogprob:
    top = [
        TopLogprob(None, _token_bytes(each), each.logprob)
        for each in (body.top_logprobs or [])[:num_top]
    ]
    return TokenLogprob(token_id, _token_bytes(body), body.logprob, top)


def _of_completion(
    token_id: int | None,
    token: str,
    logprob: float | None,
    top: dict[str, float] | None,
    num_top: int,
) -> TokenLogprob:
    """The chosen token is also among `top`, though it may not be one of the likeliest."""
    falling = sorted((top or {}).items(), key=lambda item: -item[1])[:num_top]
    likeliest = [TopLogprob(None, _spelled(each), score) for each, score in falling]
    return TokenLogprob(token_id, _spelled(token), logprob, likeliest)


def _token_bytes(body: TopBody) -> bytes:
    return body.token.encode() if body.bytes is None else bytes(body.bytes)


def _spelled(token: str) -> bytes:
    """The bytes of a completion's token; parts of characters are written in hexadecimal."""
    if not token.startswith(_BYTES_PREFIX + "\\x"):
        return token.encode()
    return bytes.fromhex(token.removeprefix(_BYTES_PREFIX).replace("\\x", ""))
