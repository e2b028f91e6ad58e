"""`/api/v1/experiments` and `/api/v1/feedback`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.exchange import exchange_of
from headrace.api.experiments.schema import (
    ConcludeRequest,
    ExperimentList,
    ExperimentRequest,
    FeedbackAnswer,
    FeedbackRequest,
)
from headrace.api.models.requests import refuse_foreign_pages, refuse_other_sites, who
from headrace.api.openapi import describe
from headrace.api.serving import Serving
from headrace.routing.experiments.experiments import Experiments
from headrace.routing.experiments.state import ExperimentState

CREATED = 201


class ExperimentRoutes:
    """Parses, asks the experiments, renders."""

    def __init__(self, serving: Serving, experiments: Experiments, server_host: str) -> None:
        self.serving = serving
        self.experiments = experiments
        self._server_host = server_host

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1", tags=["Experiments"])
        router.post(
            "/experiments",
            **describe(
                "Compare versions",
                body=ExperimentRequest,
                answer=ExperimentState,
                status=CREATED,
            ),
        )(self.create)
        router.get("/experiments", **describe("Every experiment", answer=ExperimentList))(
            self.states
        )
        router.get(
            "/experiments/{experiment_id}", **describe("One experiment", answer=ExperimentState)
        )(self.state)
        router.post(
            "/experiments/{experiment_id}/conclude",
            **describe(
                "End it, and make a version active", body=ConcludeRequest, answer=ExperimentState
            ),
        )(self.conclude)
        router.post(
            "/feedback",
            **describe("Say how good an answer was", body=FeedbackRequest, answer=FeedbackAnswer),
        )(self.feedback)
        return router

    async def create(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._server_host)
        body = await read_json(request, ExperimentRequest, self.serving.deadline(request))
        return json_response(await self.experiments.create(body.plan()), status=CREATED)

    async def states(self, _request: Request) -> Response:
        return json_response(ExperimentList(await self.experiments.states()))

    async def state(self, _request: Request, experiment_id: str) -> Response:
        return json_response(await self.experiments.state(experiment_id))

    async def conclude(self, request: Request, experiment_id: str) -> Response:
        refuse_foreign_pages(request, self._server_host)
        winner = await self._winner(request)
        state = await self.experiments.conclude(experiment_id, winner, who=who(request))
        return json_response(state)

    async def feedback(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._server_host)
        body = await read_json(request, FeedbackRequest, self.serving.deadline(request))
        self.experiments.feedback(body.request_id, body.score)
        return json_response(FeedbackAnswer(body.request_id, body.score))

    async def _winner(self, request: Request) -> str | None:
        """As the body names it, if there is one."""
        exchange = exchange_of(request.scope)
        has_body = (
            exchange.header("Content-Length") not in (None, "0")
            or exchange.header("Transfer-Encoding") is not None
        )
        if not has_body:
            refuse_other_sites(request)
            return None
        body = await read_json(request, ConcludeRequest, self.serving.deadline(request))
        return body.winner
