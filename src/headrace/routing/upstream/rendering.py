"""Writes a generation request as a body of OpenAI's API, in the dialect of the upstream.

What the dialect has no word for is an error that names it; nothing is left out in silence.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Chat, GenerationRequest, Message, SamplingParams
from headrace.routing.upstream.continuing import continuation, what_remains
from headrace.routing.upstream.dialect import Dialect

CHAT_PATH = "chat/completions"
COMPLETION_PATH = "completions"

_NEUTRAL = SamplingParams()
_OWN_RULES = frozenset({"max_tokens", "logprobs", "logit_bias", "echo"})
_PLAIN = tuple(name for name in SamplingParams.__struct_fields__ if name not in _OWN_RULES)


def render(request: GenerationRequest, model: str, dialect: Dialect) -> tuple[str, bytes]:
    """The path under the base URL and the body of a request; the answer is always streamed."""
    rest = what_remains(request, dialect)
    is_chat = isinstance(rest.prompt, Chat)
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_extra(rest.sampling, dialect),
        **_prompt(rest, dialect),
        **_sampling(rest.sampling, dialect, is_chat=is_chat),
        **continuation(request, dialect),
    }
    return CHAT_PATH if is_chat else COMPLETION_PATH, encode(body)


def message_bodies(chat: Chat) -> list[dict[str, str]]:
    return [_message(message) for message in chat.messages]


def encode(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"the request holds a value out of range: {error}") from None


def _message(message: Message) -> dict[str, str]:
    body = {"role": message.role, "content": message.content}
    return body if message.name is None else body | {"name": message.name}


def _extra(params: SamplingParams, dialect: Dialect) -> Mapping[str, int | bool]:
    # With an echo a Headrace tells the prompt's tokens too, and nobody could tell them apart.
    return {} if params.echo and dialect.takes_answered_tokens else dialect.extra


def _prompt(request: GenerationRequest, dialect: Dialect) -> dict[str, Any]:
    # Elsewhere the prefix cache has no salt: the upstream sees all tenants as one.
    salted = request.cache_salt and dialect.takes_cache_salt
    body: dict[str, Any] = {"cache_salt": request.cache_salt} if salted else {}
    if not isinstance(request.prompt, Chat):
        return body | {"prompt": request.prompt}
    body["messages"] = message_bodies(request.prompt)
    if not request.prompt.add_generation_prompt:
        if not dialect.takes_generation_prompt:
            raise _unsupported("add_generation_prompt", dialect)
        body["add_generation_prompt"] = False
    return body


def _sampling(params: SamplingParams, dialect: Dialect, *, is_chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = dict(_max_tokens(params.max_tokens, dialect, is_chat=is_chat))
    for name in _PLAIN:
        value = getattr(params, name)
        if name not in dialect.explicit and value == getattr(_NEUTRAL, name):
            continue
        if name not in dialect.names:
            raise _unsupported(name, dialect)
        body[dialect.names[name]] = value
    if params.logit_bias:
        body["logit_bias"] = _biases(params.logit_bias, dialect)
    _check_seed(params.seed, dialect)
    return body | _echo(params, dialect, is_chat=is_chat) | _logprobs(params, dialect, is_chat)


def _max_tokens(limit: int | None, dialect: Dialect, *, is_chat: bool) -> dict[str, int | None]:
    if is_chat:
        return {} if limit is None else {dialect.chat_max_tokens: limit}
    if limit is not None:
        return {"max_tokens": limit}
    if dialect.unlimited is None:  # left out, it would mean 16
        raise InvalidRequestError(
            "max_tokens: this upstream cannot complete a prompt without a limit", param="max_tokens"
        )
    return dict(dialect.unlimited)


def _echo(params: SamplingParams, dialect: Dialect, *, is_chat: bool) -> dict[str, bool]:
    if not params.echo:
        return {}
    if is_chat or "echo" not in dialect.names:
        raise _unsupported("echo", dialect)
    return {"echo": True}


def _logprobs(params: SamplingParams, dialect: Dialect, is_chat: bool) -> dict[str, int | bool]:  # noqa: FBT001
    if params.logprobs is None:
        return {}
    number = max(params.logprobs, dialect.min_logprobs)
    return {"logprobs": True, "top_logprobs": number} if is_chat else {"logprobs": number}


def _biases(
    biases: dict[int, float], dialect: Dialect
) -> list[tuple[int, float]] | dict[str, float]:
    if dialect.biases_as_pairs:
        return list(biases.items())
    return {str(token_id): bias for token_id, bias in biases.items()}


def _check_seed(seed: int | None, dialect: Dialect) -> None:
    if seed is not None and dialect.seeds is not None and seed not in dialect.seeds:
        raise InvalidRequestError(
            f"seed must be from 0 to {dialect.seeds[-1]} for this upstream", param="seed"
        )


def _unsupported(name: str, dialect: Dialect) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{name} is not supported by this upstream, which speaks {dialect.name!r}", param=name
    )
