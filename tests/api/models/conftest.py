"""The real app over a registry without models, whose workers are scripted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.settings import (
    LimitsSection,
    ServerSection,
    Settings,
    StorageSection,
    TelemetrySection,
)
from scripted_serving import COMMAND, IMPATIENT, new_router

GOOD = "pypi:good"
DECLARED = "declared.gguf"


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    registry = Registry(tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT)
    await registry.start([])
    try:
        yield registry
    finally:
        await registry.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    roots = (tmp_path / "models",)
    return Settings(
        server=ServerSection(port=0, state_dir=tmp_path, model_roots=roots),
        storage=StorageSection(),
        limits=LimitsSection(max_queued_requests=9),
        telemetry=TelemetrySection(),
        models=(ModelSpec(name="declared", source=DECLARED),),
    )


async def post(http: httpx.AsyncClient, operation: str, **body: Any) -> httpx.Response:
    return await http.post(f"/api/v1/models/{operation}", json=body)


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]
