"""The real app behind the real HTTP server on a free port, in the test's own event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from api.scripted import ScriptedRegistry
from headrace.api.app import create_app
from headrace.api.connection import StreamingProtocol
from headrace.api.serving import Readiness
from headrace.api.trials import Trials
from headrace.settings import (
    LimitsSection,
    ServerSection,
    Settings,
    StorageSection,
    TelemetrySection,
)
from headrace.telemetry.logging import configure_logging


@pytest.fixture(autouse=True)
def _plain_logs() -> None:
    configure_logging(log_format="json")


@pytest.fixture
def registry() -> ScriptedRegistry:
    return ScriptedRegistry()


@pytest.fixture
def model(registry: ScriptedRegistry) -> object:
    return registry.models[0]


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        server=ServerSection(port=0, state_dir=tmp_path, max_body_bytes=1 << 20),
        storage=StorageSection(),
        limits=LimitsSection(),
        telemetry=TelemetrySection(),
        models=(),
    )


@pytest.fixture
async def url(
    registry: ScriptedRegistry, settings: Settings, readiness: Readiness
) -> AsyncIterator[str]:
    app = create_app(registry, Trials(registry), settings, readiness=readiness)
    async with running(
        uvicorn.Config(app, port=0, http=StreamingProtocol, lifespan="off", log_config=None)
    ) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client:
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    plain = openai.DefaultAsyncHttpxClient(verify=False)  # TLS contexts take their time to make
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=plain
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def running(config: uvicorn.Config) -> AsyncIterator[str]:
    server = uvicorn.Server(config)
    listening = asyncio.Event()
    startup = server.startup

    async def startup_and_tell(sockets: object = None) -> None:
        await startup(sockets)
        listening.set()

    stop = asyncio.Event()
    server.startup = startup_and_tell
    server.main_loop = stop.wait
    server.shutdown = partial(shut, server)
    server.capture_signals = contextlib.nullcontext
    serving = asyncio.create_task(server.serve())
    try:
        await listening.wait()
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        stop.set()
        await serving


async def shut(server: uvicorn.Server, **_sockets: object) -> None:
    """Close without uvicorn's pauses: the tests' clients have left or are leaving."""
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
