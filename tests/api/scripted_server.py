"""The real `serve` with a scripted registry, as a process of its own that takes signals.

Run as `python scripted_server.py STATE_DIR PORT SETTLE TIMEOUT`; prints its URL when it is ready.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from api.scripted import ScriptedModel, ScriptedRegistry, chunk_of
from headrace.api import server
from headrace.generation import Chunk, GenerationRequest
from headrace.settings import (
    LimitsSection,
    ServerSection,
    Settings,
    StorageSection,
    TelemetrySection,
)


async def ten_slow_words(_model: ScriptedModel, request: GenerationRequest) -> AsyncIterator[Chunk]:
    """About a second of words; a prompt of `forever` has no end."""
    number = 0
    while number < 9 or request.prompt == "forever":
        yield chunk_of(f" {number}", request, 0, is_last=False, count=10)
        await asyncio.sleep(0.1)
        number += 1
    yield chunk_of(" end", request, 0, is_last=True, count=10)


def main(state_dir: str, port: str, settle: str, timeout: str) -> None:
    registry = ScriptedRegistry(models=[ScriptedModel(script=ten_slow_words)])
    server.Registry = lambda *_args, **_kwargs: registry
    settings = Settings(
        server=ServerSection(
            port=int(port),
            state_dir=Path(state_dir),
            shutdown_settle=float(settle),
            shutdown_timeout=float(timeout),
        ),
        storage=StorageSection(),
        limits=LimitsSection(),
        telemetry=TelemetrySection(),
        models=(),
    )
    server.serve(settings, on_ready=lambda url: print(url, flush=True))  # noqa: T201  # its caller reads it


if __name__ == "__main__":
    main(*sys.argv[1:])
