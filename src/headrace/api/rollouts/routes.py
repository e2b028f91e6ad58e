"""`/api/v1/rollouts`: a candidate that takes over by stages, and what a person may do about it."""

import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response, read_json
from headrace.api.models.requests import refuse_foreign_pages, refuse_other_sites, who
from headrace.api.openapi import describe
from headrace.api.rollouts.live import LiveRollouts
from headrace.api.rollouts.schema import (
    RolloutList,
    RolloutRequest,
    RolloutState,
    state_of,
    summary_of,
)
from headrace.api.serving import Serving
from headrace.routing.rollouts.rollout import Rollout

ACCEPTED = 202


class RolloutRoutes:
    """Parses, asks the rollouts, renders."""

    def __init__(self, serving: Serving, live: LiveRollouts, server_host: str) -> None:
        self.serving = serving
        self._live = live
        self._server_host = server_host

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1/rollouts", tags=["Rollouts"])
        router.post(
            "",
            **describe("Start one", body=RolloutRequest, answer=RolloutState, status=ACCEPTED),
        )(self.start)
        router.get("", **describe("Every rollout", answer=RolloutList))(self.rollouts)
        router.get("/{rollout_id}", **describe("One rollout", answer=RolloutState))(self.rollout)
        for path, summary, act in (
            ("promote", "Make the candidate active now", self.promote),
            ("pause", "Stay at this stage", self.pause),
            ("resume", "Go on", self.resume),
            ("abort", "Send every user back", self.abort),
        ):
            described = describe(summary, answer=RolloutState)
            router.post(f"/{{rollout_id}}/{path}", **described)(act)
        return router

    async def start(self, request: Request) -> Response:
        refuse_foreign_pages(request, self._server_host)
        body = await read_json(request, RolloutRequest, self.serving.deadline(request))
        rollout = await self._live.begin(body.plan())
        return json_response(state_of(rollout, time.time()), status=ACCEPTED)

    async def rollouts(self, _request: Request) -> Response:
        return json_response(RolloutList([summary_of(each) for each in self._live.rollouts]))

    async def rollout(self, _request: Request, rollout_id: str) -> Response:
        return json_response(state_of(self._live.rollouts.find(rollout_id), time.time()))

    async def promote(self, request: Request, rollout_id: str) -> Response:
        deadline = self.serving.deadline(request)
        return await self._do(
            request,
            rollout_id,
            lambda rollout: self._live.promote(rollout, who=who(request), deadline=deadline),
        )

    async def pause(self, request: Request, rollout_id: str) -> Response:
        return await self._do(
            request, rollout_id, lambda rollout: self._live.pause(rollout, who=who(request))
        )

    async def resume(self, request: Request, rollout_id: str) -> Response:
        return await self._do(
            request, rollout_id, lambda rollout: self._live.resume(rollout, who=who(request))
        )

    async def abort(self, request: Request, rollout_id: str) -> Response:
        return await self._do(
            request, rollout_id, lambda rollout: self._live.abort(rollout, who=who(request))
        )

    async def _do(
        self, request: Request, rollout_id: str, act: Callable[[Rollout], Awaitable[None]]
    ) -> Response:
        refuse_foreign_pages(request, self._server_host)
        refuse_other_sites(request)
        rollout = self._live.rollouts.find(rollout_id)
        await act(rollout)
        return json_response(state_of(rollout, time.time()))
