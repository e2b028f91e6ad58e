"""Puts the server's parts together; the only file that knows every one of them."""

from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from headrace import __version__
from headrace.api.errors import answer_headrace_error, answer_routing_error
from headrace.api.generate import GenerateRoutes
from headrace.api.middleware import AccessLog, BodyLimit, Faults, RequestId, SecurityHeaders
from headrace.api.openai.routes import OpenAIRoutes
from headrace.api.openapi import openapi_document
from headrace.api.ops import OpsRoutes
from headrace.api.serving import Readiness, Serving
from headrace.api.tokenization import TokenizationRoutes
from headrace.errors import HeadraceError
from headrace.registry.registry import Registry
from headrace.settings import Settings
from headrace.telemetry.metrics import Metrics


def create_app(
    registry: Registry, settings: Settings, *, readiness: Readiness | None = None
) -> FastAPI:
    """Make the app; `readiness` is how its server says that it is about to stop."""
    metrics = Metrics(__version__)
    serving = Serving(
        registry=registry,
        metrics=metrics,
        readiness=readiness or Readiness(),
        request_timeout=settings.server.request_timeout,
    )
    app = FastAPI(
        title="Headrace",
        version=__version__,
        description="One server for any model: OpenAI's API and our own.",
        redoc_url=None,
        # The onion, outermost first.
        middleware=[
            Middleware(RequestId),
            Middleware(AccessLog, metrics=metrics),
            Middleware(SecurityHeaders),
            Middleware(Faults),
            Middleware(BodyLimit, max_bytes=settings.server.max_body_bytes),
        ],
        exception_handlers={
            HeadraceError: answer_headrace_error,
            HTTPException: answer_routing_error,
        },
    )
    routers = [
        OpenAIRoutes(serving).router(),
        GenerateRoutes(serving).router(),
        TokenizationRoutes(serving).router(),
        OpsRoutes(serving, metrics=settings.telemetry.metrics).router(),
    ]
    for router in routers:
        app.include_router(router)
    app.openapi = partial(openapi_document, app, routers)  # type: ignore[method-assign]  # FastAPI's own way
    return app
