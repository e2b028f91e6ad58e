"""OpenAI's API: models, chat completions, completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_body
from headrace.api.openai.asked import read_asked
from headrace.api.openai.keeping import KeptBytes
from headrace.api.openai.parsing import CHAT_KIND, COMPLETION_KIND, Kind, Posted
from headrace.api.openai.schema import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
)
from headrace.api.openai.work import OpenAIWork
from headrace.api.openapi import describe
from headrace.api.serving import Serving
from headrace.api.sse import GenerationResponse
from headrace.api.tracing import trace_of
from headrace.errors import ModelNotFoundError, NotReadyError
from headrace.registry.status import ModelStatus


class OpenAIRoutes:
    """Parses, hands on, renders."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self._kept_bytes = KeptBytes()

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
        return await self._respond(request, CHAT_KIND)

    async def completions(self, request: Request) -> GenerationResponse:
        return await self._respond(request, COMPLETION_KIND)

    async def _respond(self, request: Request, kind: Kind) -> GenerationResponse:
        deadline = self.serving.deadline(request)
        body = await read_body(request, deadline)
        asked = read_asked(body, kind.asked)
        posted = Posted(
            kind=kind, body=body, asked=asked, deadline=deadline, trace=trace_of(request.scope)
        )
        model = self.serving.resolve(request, asked.model)
        work = OpenAIWork(model, posted, self._kept_bytes)
        return GenerationResponse(self.serving, work)

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
        # Whoever is in front of us takes one of us for a server that goes on after tokens.
        owned_by="headrace-gateway" if _has_upstreams(status) else "headrace",
    )


def _has_upstreams(status: ModelStatus) -> bool:
    return any(endpoint.kind == "upstream" for endpoint in status.endpoints)
