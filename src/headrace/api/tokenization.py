"""`/tokenize` and `/detokenize`: a model's tokenizer as a service, run in its worker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.disconnect import within
from headrace.api.exchange import exchange_of
from headrace.api.openai.requests import chat_messages
from headrace.api.openai.schema import ChatMessage, ModelName
from headrace.api.openapi import describe
from headrace.api.sampling import MAX_PROMPT_TOKENS, TokenId
from headrace.api.serving import VERSION_HEADER, Serving
from headrace.errors import InvalidRequestError
from headrace.generation import Chat, LanguageModel, ModelInfo, Prompt

MAX_PIECES = 4096
MAX_CONCURRENT_PIECES = 64


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /tokenize`: a `prompt` or `messages`."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    with_pieces: Annotated[bool, Meta(description="Also give the text of each token.")] = False


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of a prompt, as the model would get them."""

    model: str
    count: int
    max_model_len: int | None
    tokens: list[int]
    pieces: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_TOKENS)]
    model: ModelName | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The text of token ids."""

    model: str
    text: str


class TokenizationRoutes:
    """Both directions."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Headrace"])
        router.post(
            "/tokenize", **describe("Text to tokens", body=TokenizeRequest, answer=TokenizeAnswer)
        )(self.tokenize)
        router.post(
            "/detokenize",
            **describe("Tokens to text", body=DetokenizeRequest, answer=DetokenizeAnswer),
        )(self.detokenize)
        return router

    async def tokenize(self, request: Request) -> Response:
        deadline = self.serving.deadline(request)
        body = await read_json(request, TokenizeRequest, deadline)
        prompt = _prompt(body)

        async def answer(model: LanguageModel) -> TokenizeAnswer:
            special = body.add_special_tokens
            tokens = await model.tokenize(prompt, add_special_tokens=special)
            return TokenizeAnswer(
                model=model.info.model_id,
                count=len(tokens),
                max_model_len=model.info.max_model_len,
                tokens=tokens,
                pieces=await _pieces(model, tokens) if body.with_pieces else None,
            )

        return await self._ask(request, body.model, deadline, answer)

    async def detokenize(self, request: Request) -> Response:
        deadline = self.serving.deadline(request)
        body = await read_json(request, DetokenizeRequest, deadline)

        async def answer(model: LanguageModel) -> DetokenizeAnswer:
            _require_in_vocabulary(body.tokens, model.info)
            text = await model.detokenize(body.tokens)
            return DetokenizeAnswer(model=model.info.model_id, text=text)

        return await self._ask(request, body.model, deadline, answer)

    async def _ask(
        self,
        request: Request,
        name: str | None,
        deadline: float,
        question: Callable[[LanguageModel], Awaitable[msgspec.Struct]],
    ) -> Response:
        name = self.serving.resolve(request, name)
        with within(deadline):
            async with self.serving.registry.acquire(name, deadline) as model:
                response = json_response(await question(model))
                response.headers[VERSION_HEADER] = model.info.model_id
                exchange_of(request.scope).model_id = model.info.model_id
        return response


async def _pieces(model: LanguageModel, tokens: list[int]) -> list[str]:
    if len(tokens) > MAX_PIECES:
        raise InvalidRequestError(
            f"with_pieces: {len(tokens)} tokens are over the limit of {MAX_PIECES}.",
            param="with_pieces",
        )
    places = asyncio.Semaphore(MAX_CONCURRENT_PIECES)

    async def piece(token: int) -> str:
        async with places:
            return await model.detokenize([token])

    distinct = sorted(set(tokens))
    texts = await asyncio.gather(*map(piece, distinct))
    by_token = dict(zip(distinct, texts, strict=True))
    return [by_token[token] for token in tokens]


def _prompt(body: TokenizeRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("Send either prompt or messages.", param="prompt")
    if body.prompt is not None:
        return body.prompt
    assert body.messages is not None
    return Chat(chat_messages(body.messages), add_generation_prompt=body.add_generation_prompt)


def _require_in_vocabulary(tokens: list[int], info: ModelInfo) -> None:
    if info.vocab_size is None:  # an upstream's own: it is asked as it is
        return
    highest = max(tokens, default=0)
    if highest >= info.vocab_size:
        where = f"tokens.{tokens.index(highest)}"
        raise InvalidRequestError(
            f"{where}: {highest} is outside the vocabulary of {info.vocab_size}.", param=where
        )
