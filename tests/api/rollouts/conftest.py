"""Rollouts over a registry whose workers are scripted, with routes of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from api.conftest import running
from headrace.api.connection import StreamingProtocol
from headrace.api.middleware import BodyLimit, Exchanges, Faults
from headrace.api.rollouts.live import LiveRollouts
from headrace.api.rollouts.routes import RolloutRoutes
from headrace.api.routing import Routes
from headrace.api.serving import Readiness, Serving
from headrace.api.traffic import Traffic
from headrace.api.trials import Trials
from headrace.registry.registry import Registry
from headrace.telemetry.metrics import Metrics
from scripted_serving import COMMAND, IMPATIENT, Served, load, new_router, unknown_size

INTERVAL = 0.02


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """With two versions of `m0`, the first of which is active."""
    registry = Registry(
        tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT, sizes=unknown_size
    )
    await registry.start([])
    try:
        served = Served(registry)
        for version in (1, 2):
            await load(served, version)
        yield served
    finally:
        await registry.close()


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@asynccontextmanager
async def alive(registry: Registry, database_url: str) -> AsyncIterator[LiveRollouts]:
    live = LiveRollouts(registry, database_url=database_url, server="s", interval=INTERVAL)
    await live.start()
    try:
        yield live
    finally:
        await live.close()


@pytest.fixture
async def live(served: Served, database_url: str) -> AsyncIterator[LiveRollouts]:
    async with alive(served.registry, database_url) as live:
        yield live


@pytest.fixture
async def http(served: Served, live: LiveRollouts) -> AsyncIterator[httpx.AsyncClient]:
    serving = Serving(
        registry=served.registry,
        metrics=Metrics("0"),
        readiness=Readiness(),
        request_timeout=60.0,
        traffic=Traffic(live, Trials(served.registry).experiments),
    )
    app: ASGIApp = Routes([RolloutRoutes(serving, live, "127.0.0.1").router()])
    app = Exchanges(Faults(BodyLimit(app, max_bytes=1 << 20)), headers=())
    config = uvicorn.Config(app, port=0, http=StreamingProtocol, lifespan="off", log_config=None)
    async with (
        running(config) as url,
        httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client,
    ):
        yield client
