"""Puts the server's parts together; the only file that knows every one of them."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp

from headrace import __version__
from headrace.api.docs import DocsRoutes
from headrace.api.exchange import SECURITY_HEADERS
from headrace.api.experiments.routes import ExperimentRoutes
from headrace.api.generate import GenerateRoutes
from headrace.api.middleware import AccessLog, BodyLimit, Exchanges, Faults
from headrace.api.models.routes import ModelRoutes
from headrace.api.openai.routes import OpenAIRoutes
from headrace.api.ops import OpsRoutes
from headrace.api.rollouts.routes import RolloutRoutes
from headrace.api.routing import Routes
from headrace.api.serving import Readiness, Serving
from headrace.api.tokenization import TokenizationRoutes
from headrace.api.traffic import Traffic
from headrace.api.trials import Trials
from headrace.registry.registry import Registry
from headrace.settings import Settings
from headrace.telemetry.metrics import Metrics


def create_app(
    registry: Registry, trials: Trials, settings: Settings, *, readiness: Readiness | None = None
) -> ASGIApp:
    """Make the app; `readiness` is how its server says that it is about to stop."""
    metrics = Metrics(__version__)
    registry.listen_for_ends(
        of_change=metrics.change_ended,
        of_version=lambda name, version: metrics.forget(name, str(version)),
    )
    serving = Serving(
        registry=registry,
        metrics=metrics,
        readiness=readiness or Readiness(),
        request_timeout=settings.server.request_timeout,
        traffic=Traffic(trials.rollouts, trials.experiments),
    )
    routers = [
        GenerateRoutes(serving).router(),
        OpenAIRoutes(serving).router(),
        TokenizationRoutes(serving).router(),
        ModelRoutes(serving, settings).router(),
        RolloutRoutes(serving, trials.rollouts, settings.server.host).router(),
        ExperimentRoutes(serving, trials.experiments, settings.server.host).router(),
        OpsRoutes(serving, metrics=settings.telemetry.metrics).router(),
    ]
    docs = DocsRoutes(routers, version=__version__).router()
    # The onion, outermost first.
    onion = [
        Middleware(Exchanges, headers=SECURITY_HEADERS),
        Middleware(AccessLog, metrics=metrics),
        Middleware(Faults),
        Middleware(BodyLimit, max_bytes=settings.server.max_body_bytes),
    ]
    app: ASGIApp = Routes([*routers, docs])
    for layer, arguments, options in reversed(onion):
        app = layer(app, *arguments, **options)
    return app
