"""The bodies of `/tokenize` and `/detokenize`, which each kind of upstream words in its own way."""

from typing import Any

import msgspec

from headrace.errors import UnsupportedParameterError
from headrace.generation import Chat
from headrace.routing.upstream.dialect import Dialect, TokenizerRoutes
from headrace.routing.upstream.rendering import encode, message_bodies
from headrace.routing.upstream.wire import TokenId


class _Tokens(msgspec.Struct):
    tokens: list[TokenId]


class _Text(msgspec.Struct):
    """Headrace's, vLLM's and llama.cpp's word for the same."""

    text: str | None = None
    prompt: str | None = None
    content: str | None = None


_decode_tokens = msgspec.json.Decoder(_Tokens).decode
_decode_text = msgspec.json.Decoder(_Text).decode


def tokens_body(
    prompt: str | Chat, model: str, dialect: Dialect, *, add_special_tokens: bool
) -> bytes:
    routes = _routes(dialect)
    body: dict[str, Any] = {"model": model}
    if isinstance(prompt, str):
        return encode(body | {routes.prompt: prompt, routes.add_special_tokens: add_special_tokens})
    if not routes.takes_messages:
        raise UnsupportedParameterError(
            "this upstream tokenizes texts only, no messages", param="messages"
        )
    # A chat template brings its special tokens itself.
    return encode(
        body
        | {
            "messages": message_bodies(prompt),
            "add_generation_prompt": prompt.add_generation_prompt,
        }
    )


def text_body(token_ids: list[int], model: str, dialect: Dialect) -> bytes:
    _routes(dialect)
    return encode({"model": model, "tokens": token_ids})


def read_tokens(answer: bytes) -> list[int]:
    return _decode_tokens(answer).tokens


def read_text(answer: bytes) -> str:
    found = _decode_text(answer)
    for text in (found.text, found.prompt, found.content):
        if text is not None:
            return text
    raise ValueError("no text")


def _routes(dialect: Dialect) -> TokenizerRoutes:
    if dialect.tokenizer is None:
        raise UnsupportedParameterError(
            f"this upstream, which speaks {dialect.name!r}, does not tell its tokens", param="model"
        )
    return dialect.tokenizer
