"""OpenAI's API: models, chat completions, completions."""

import time
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.exchange import new_id
from headrace.api.openai.requests import (
    chat_prompt,
    chat_sampling,
    completion_prompts,
    completion_sampling,
)
from headrace.api.openai.schema import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from headrace.api.openai.stream import CHAT, COMPLETION, Dialect, Head, OpenAIWire
from headrace.api.openapi import describe
from headrace.api.serving import Serving
from headrace.api.sse import Generation, GenerationResponse
from headrace.errors import InvalidRequestError, ModelNotFoundError, NotReadyError
from headrace.generation import GenerationRequest, Prompt, SamplingParams
from headrace.registry.status import ModelStatus

Body = ChatCompletionRequest | CompletionRequest


class OpenAIRoutes:
    """Parses, hands on, renders."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["OpenAI"])
        router.get("/models", **describe("Served models", answer=ModelList))(self.models)
        router.get("/models/{model_id:path}", **describe("One served model", answer=ModelCard))(
            self.model
        )
        router.post(
            "/chat/completions",
            **describe(
                "Continue a chat", body=ChatCompletionRequest, answer=ChatCompletion, stream=True
            ),
        )(self.chat_completions)
        router.post(
            "/completions",
            **describe("Continue prompts", body=CompletionRequest, answer=Completion, stream=True),
        )(self.completions)
        return router

    async def models(self, _request: Request) -> Response:
        return json_response(ModelList(data=self._cards()))

    async def model(self, _request: Request, model_id: str) -> Response:
        for card in self._cards():
            if model_id in (card.id, card.version):
                return json_response(card)
        if any(model_id in (s.name, s.model_id) for s in self.serving.registry.statuses()):
            raise NotReadyError(f"Model {model_id[:80]!r} does not answer now.", param="model")
        raise ModelNotFoundError(f"Model {model_id[:80]!r} is not served.", param="model")

    async def chat_completions(self, request: Request) -> GenerationResponse:
        deadline = self.serving.deadline(request)
        body = await read_json(request, ChatCompletionRequest, deadline)
        prompts = [chat_prompt(body)]
        return self._respond(
            request, body, CHAT, prompts=prompts, sampling=chat_sampling(body), deadline=deadline
        )

    async def completions(self, request: Request) -> GenerationResponse:
        deadline = self.serving.deadline(request)
        body = await read_json(request, CompletionRequest, deadline)
        prompts, sampling = completion_prompts(body), completion_sampling(body)
        return self._respond(
            request, body, COMPLETION, prompts=prompts, sampling=sampling, deadline=deadline
        )

    def _respond(
        self,
        request: Request,
        body: Body,
        dialect: Dialect,
        *,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        deadline: float,
    ) -> GenerationResponse:
        head = Head(
            id=f"{dialect.id_prefix}-{new_id()}", created=int(time.time()), model=body.model
        )
        generation = Generation(
            model=self.serving.resolve(request, body.model),
            requests=[
                GenerationRequest(
                    request_id=f"{head.id}-{number}",
                    prompt=prompt,
                    sampling=sampling,
                    deadline=deadline,
                )
                for number, prompt in enumerate(prompts)
            ],
            deadline=deadline,
            stream=bool(body.stream),
            wire=partial(OpenAIWire, dialect, head, include_usage=_include_usage(body)),
        )
        return GenerationResponse(self.serving, generation)

    def _cards(self) -> list[ModelCard]:
        """A card for each available version; the active one goes by the model's plain name."""
        return [_card(status) for status in self.serving.available()]


def _card(status: ModelStatus) -> ModelCard:
    return ModelCard(
        id=status.name if status.state == "active" else status.model_id,
        created=int(status.loaded_at or 0),
        version=status.model_id,
        state=status.state,
        max_model_len=status.info.max_model_len if status.info else None,
    )


def _include_usage(body: Body) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequestError("stream_options needs stream: true.", param="stream_options")
    return bool(body.stream_options.include_usage)
