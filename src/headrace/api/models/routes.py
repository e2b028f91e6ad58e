"""`/api/v1/models`: what is served, and every change of it."""

import asyncio

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.errors import ErrorDetail
from headrace.api.exchange import exchange_of
from headrace.api.models.events import ModelEvents
from headrace.api.models.requests import (
    MAX_HISTORY,
    faults_of_description,
    history_limit,
    history_name,
    load_fields,
    naming_model,
    new_spec,
    queue_fields,
    refuse_foreign_pages,
    refuse_other_sites,
    who,
)
from headrace.api.models.schema import (
    Accepted,
    History,
    LoadRequest,
    Model,
    ModelChange,
    Models,
    RollbackRequest,
    SafetyReport,
    SwapAnswer,
    SwapRequest,
    Unloading,
    UnsafeSwap,
    model_of,
    swap_answer,
)
from headrace.api.openapi import describe
from headrace.api.serving import Serving
from headrace.errors import ConflictError
from headrace.registry.changes.safety import UnsafeSwapError
from headrace.registry.registry import Registry, Swap
from headrace.registry.status import ModelStatus
from headrace.settings import Settings

ACCEPTED = 202


class ModelRoutes:
    """Parses, asks the registry, renders."""

    def __init__(self, serving: Serving, settings: Settings) -> None:
        self.serving = serving
        self._settings = settings
        self._events = ModelEvents(serving.registry)

    @property
    def registry(self) -> Registry:
        return self.serving.registry

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1/models", tags=["Models"])
        router.get("", **describe("Every version", answer=Models))(self.models)
        router.get("/events", **describe("Every change, as it happens", stream=True))(self.events)
        router.get(
            "/history",
            **describe(
                "What was done, the newest first",
                answer=History,
                query={"name": "Of this model alone.", "limit": f"Of 1 to {MAX_HISTORY} changes."},
            ),
        )(self.history)
        router.post(
            "/load",
            **describe("Load a version", body=LoadRequest, answer=Accepted, status=ACCEPTED),
        )(self.load)
        router.post(
            "/swap", **describe("Make a version active", body=SwapRequest, answer=SwapAnswer)
        )(self.swap)
        router.post(
            "/rollback",
            **describe("Return to the version before", body=RollbackRequest, answer=SwapAnswer),
        )(self.rollback)
        router.get("/{model_id}", **describe("One version", answer=Model))(self.model)
        router.get(
            "/{model_id}/swap/safety",
            **describe("Whether a swap would be safe", answer=SafetyReport),
        )(self.safety)
        router.post(
            "/{model_id}/unload",
            **describe("Unload a version or a model", answer=Unloading, status=ACCEPTED),
        )(self.unload)
        return router

    async def models(self, _request: Request) -> Response:
        return json_response(Models([model_of(status) for status in self.registry.statuses()]))

    async def model(self, _request: Request, model_id: str) -> Response:
        return json_response(model_of(self.registry.status(model_id)))

    async def events(self, _request: Request) -> ModelEvents:
        return self._events

    async def history(self, request: Request) -> Response:
        changes = await self.registry.history(history_name(request), history_limit(request))
        told = [msgspec.convert(each, ModelChange, from_attributes=True) for each in changes]
        return json_response(History(told))

    async def load(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._settings.server.host)
        body = await read_json(request, LoadRequest, self.serving.deadline(request))
        with faults_of_description():
            status = await self._load(body, who(request))
        return json_response(_accepted(status), status=ACCEPTED)

    async def swap(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._settings.server.host)
        deadline = self.serving.deadline(request)
        body = await read_json(request, SwapRequest, deadline)
        try:
            with naming_model("model_id"), faults_of_description():
                swap = await self._swap(body, who(request), deadline)
        except UnsafeSwapError as error:
            return _unsafe(error, request)
        return json_response(swap_answer(swap))

    async def rollback(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._settings.server.host)
        deadline = self.serving.deadline(request)
        body = await read_json(request, RollbackRequest, deadline)
        with naming_model("name"):
            swap = await self.registry.rollback(body.name, who=who(request), deadline=deadline)
        return json_response(swap_answer(swap))

    async def safety(self, _request: Request, model_id: str) -> Response:
        report = self.registry.safety(model_id)
        return json_response(msgspec.convert(report, SafetyReport, from_attributes=True))

    async def unload(self, request: Request, model_id: str) -> Response:
        refuse_foreign_pages(request, self._settings.server.host)
        refuse_other_sites(request)
        statuses = await self.registry.unload(model_id, who=who(request))
        answer = Unloading([_accepted(status) for status in statuses])
        return json_response(answer, status=ACCEPTED)

    async def _load(self, body: LoadRequest, by: str) -> ModelStatus:
        """Of loads that choose no version, each gets one of its own."""
        while True:
            number = self._next_version(body.name)
            fields = load_fields(body, number)
            spec = await asyncio.to_thread(new_spec, fields, self._settings)
            try:
                return await self.registry.load(spec, who=by)
            except ConflictError:
                if body.version is not None or self._next_version(body.name) == number:
                    raise

    async def _swap(self, body: SwapRequest, by: str, deadline: float) -> Swap:
        fields = queue_fields(body)
        if fields is None:
            return await self.registry.swap(body.model_id, who=by, deadline=deadline)
        spec = await asyncio.to_thread(new_spec, fields, self._settings)
        return await self.registry.replace(spec, who=by, deadline=deadline)

    def _next_version(self, name: str) -> int:
        statuses = self.registry.statuses()
        return 1 + max((each.version for each in statuses if each.name == name), default=0)


def _accepted(status: ModelStatus) -> Accepted:
    return Accepted(status.model_id, status.state)


def _unsafe(error: UnsafeSwapError, request: Request) -> Response:
    """The refusal as every other one, and beside it the report that says what is missing."""
    exchange = exchange_of(request.scope)
    exchange.error_code = error.code
    detail = ErrorDetail(error.message, error.type, error.param, error.code, exchange.request_id)
    answer = UnsafeSwap(detail, msgspec.convert(error.report, SafetyReport, from_attributes=True))
    return json_response(answer, status=error.status)
