"""The routes of experiments over a registry whose workers are scripted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from api.conftest import running
from headrace.api.connection import StreamingProtocol
from headrace.api.experiments.routes import ExperimentRoutes
from headrace.api.experiments.versions import ExperimentVersions
from headrace.api.middleware import BodyLimit, Exchanges, Faults
from headrace.api.rollouts.versions import RegistryVersions
from headrace.api.routing import Routes
from headrace.api.serving import Readiness, Serving
from headrace.api.traffic import Traffic
from headrace.api.trials import Trials
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.routing.experiments.experiments import Experiments, Versions
from headrace.routing.observation import Observation
from headrace.telemetry.metrics import Metrics
from scripted_serving import COMMAND, IMPATIENT, Served, new_router, unknown_size

GOOD = "pypi:good"
PATH = "/api/v1/experiments"


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """With two versions of `m0`, the first of which is active."""
    registry = Registry(
        tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT, sizes=unknown_size
    )
    served = Served(registry)
    await registry.start([])
    try:
        for version, state in ((1, "active"), (2, "ready")):
            await registry.load(ModelSpec(name="m0", source=GOOD, version=version), who="test")
            await served.until(lambda s, v=version, to=state: (s.version, s.state) == (v, to))
        yield registry
    finally:
        await registry.close()


@pytest.fixture
async def experiments(registry: Registry) -> AsyncIterator[Experiments]:
    async with running_experiments(
        ExperimentVersions(registry, RegistryVersions(registry))
    ) as experiments:
        yield experiments


@pytest.fixture
async def http(registry: Registry, experiments: Experiments) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(registry, experiments) as client:
        yield client


@asynccontextmanager
async def running_experiments(versions: Versions) -> AsyncIterator[Experiments]:
    experiments = Experiments(versions)
    await experiments.start()
    try:
        yield experiments
    finally:
        await experiments.close()


@asynccontextmanager
async def asking(registry: Any, experiments: Experiments) -> AsyncIterator[httpx.AsyncClient]:
    """Over HTTP, through the layers that read a body and tell of errors."""
    serving = Serving(
        registry=registry,
        metrics=Metrics("0"),
        readiness=Readiness(),
        request_timeout=60.0,
        traffic=Traffic(Trials(registry).rollouts, experiments),
    )
    routes = ExperimentRoutes(serving, experiments, "127.0.0.1")
    app: ASGIApp = Routes([routes.router()])
    app = Exchanges(Faults(BodyLimit(app, max_bytes=1 << 20)), headers=())
    config = uvicorn.Config(app, port=0, http=StreamingProtocol, lifespan="off", log_config=None)
    async with (
        running(config) as url,
        httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client,
    ):
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    variants = [{"model_id": "m0@1", "weight": 1}, {"model_id": "m0@2", "weight": 1}]
    known = {"name": "m0", "variants": variants, "metric": "success", "min_samples": 20}
    return {**known, **fields}


async def created(http: httpx.AsyncClient, **fields: Any) -> str:
    answer = await http.post(PATH, json=asked(**fields))
    assert answer.status_code == 201, answer.text
    return answer.json()["experiment_id"]


def serve(experiments: Experiments, count: int) -> None:
    """Of the first version every other answer fails."""
    for i in range(count):
        model_id = experiments.choose("m0", f"u{i}")
        assert model_id is not None
        seen = Observation(
            user=f"u{i}",
            failed=model_id == "m0@1" and i % 2 == 0,
            ttft=None,
            latency=0.5,
            num_tokens=7,
        )
        experiments.observe(model_id, f"r{i}", seen)


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]
