"""For whoever runs the server: health, metrics, version. No model work, nothing that waits."""

import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.api.body import json_response
from headrace.api.models.schema import Endpoint, endpoints_of
from headrace.api.openapi import describe
from headrace.api.serving import Serving
from headrace.generation import EngineStats
from headrace.registry.status import ModelStatus
from headrace.telemetry.metrics import CONTENT_TYPE, ModelSample


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One version's state, and while it loads how far it is."""

    model_id: str
    state: str
    progress: float
    phase: str
    reason: str | None
    restarts: int
    executor: str | None  # of a model that answers, such as native-avx2
    endpoints: list[Endpoint]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is ok, unavailable (no model answers) or draining."""

    status: str
    version: str
    uptime_seconds: float
    models: list[ModelHealth]


class Live(msgspec.Struct, frozen=True):
    """The loop turns."""

    status: str = "live"


class Ready(msgspec.Struct, frozen=True):
    """Whether to send traffic here."""

    status: str


class Version(msgspec.Struct, frozen=True):
    """What runs here."""

    version: str
    name: str = "headrace"


class OpsRoutes:
    """The routes without a prefix; `metrics=False` leaves `/metrics` out."""

    def __init__(self, serving: Serving, *, metrics: bool) -> None:
        self.serving = serving
        self._started = time.monotonic()
        self._with_metrics = metrics

    def router(self) -> APIRouter:
        router = APIRouter(tags=["Operations"])
        router.get("/", **describe("Where to look", answer=Version))(self.version)
        router.get("/health", **describe("Summary; 503 unless ready", answer=Health))(self.health)
        router.get("/health/live", **describe("The process answers", answer=Live))(self.live)
        router.get("/health/ready", **describe("503 unless a model answers", answer=Ready))(
            self.ready
        )
        for path, answer in (
            ("/health", self.health),
            ("/health/live", self.live),
            ("/health/ready", self.ready),
        ):  # common probes ask so
            router.head(path, include_in_schema=False)(answer)
        router.get("/version", **describe("Version", answer=Version))(self.version)
        if self._with_metrics:
            router.get("/metrics", **describe("Prometheus text, or a JSON summary"))(self.metrics)
        return router

    async def health(self, _request: Request) -> Response:
        health = Health(
            status=self._status(),
            version=__version__,
            uptime_seconds=round(time.monotonic() - self._started, 3),
            models=[_health(status) for status in self.serving.registry.statuses()],
        )
        return json_response(health, status=200 if self.serving.is_ready else 503)

    async def live(self, _request: Request) -> Response:
        return json_response(Live())

    async def ready(self, _request: Request) -> Response:
        status = "ready" if self.serving.is_ready else self._status()
        return json_response(Ready(status), status=200 if self.serving.is_ready else 503)

    async def version(self, _request: Request) -> Response:
        return json_response(Version(__version__))

    async def metrics(self, request: Request) -> Response:
        models = [_sample(status) for status in self.serving.registry.statuses()]
        if "application/json" in request.headers.get("accept", ""):
            return json_response(self.serving.metrics.summary(models))
        return Response(self.serving.metrics.exposition(models), media_type=CONTENT_TYPE)

    def _status(self) -> str:
        if self.serving.readiness.is_leaving:
            return "draining"
        return "ok" if self.serving.is_ready else "unavailable"


def _health(status: ModelStatus) -> ModelHealth:
    return ModelHealth(
        model_id=status.model_id,
        state=status.state,
        progress=status.progress,
        phase=status.phase,
        reason=status.reason,
        restarts=status.restarts,
        executor=status.info.executor if status.info else None,
        endpoints=endpoints_of(status),
    )


def _sample(status: ModelStatus) -> ModelSample:
    return ModelSample(
        model=status.name,
        version=status.model_id.rpartition("@")[2],
        ready=status.is_answering,
        active=status.state == "active",
        leases=status.num_leases,
        health_score=status.health_score,
        restarts=status.restarts,
        routing=status.routing,
        memory_bytes=status.memory_bytes,
        stats=status.stats or EngineStats(),
        endpoints=status.endpoints,
    )
