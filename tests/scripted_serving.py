"""A registry of scripted models, with a check that nothing is left when it is closed."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.endpoints import Router, RoutingConfig, UpstreamConfig, Worker
from headrace.generation import Chunk, EngineStats, GenerationRequest, LanguageModel
from headrace.registry.registry import ModelStatus, Registry
from headrace.registry.spec import ModelSpec
from headrace.registry.workers.patience import Patience
from headrace.routing.router import VersionRouter

SCRIPT = Path(__file__).with_name("scripted_worker.py")
COMMAND = (sys.executable, str(SCRIPT))
IMPATIENT = Patience(
    tick=0.1,
    silence=3.0,
    standstill=1.5,
    standstill_at_first=1.5,
    first_delay=0.05,
    longest_delay=0.2,
    termination=5.0,
)


async def new_router(
    model_id: str,
    config: RoutingConfig,
    workers: Sequence[Worker],
    upstreams: Sequence[UpstreamConfig],
    on_change: Callable[[], None],
) -> Router:
    return VersionRouter(model_id, config, workers, upstreams, on_change)


class Served:
    """A registry and what it told its listener."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.seen: list[ModelStatus] = []
        self._changed = asyncio.Event()
        registry.listen(self._listen)

    @property
    def pid(self) -> int:
        """Of the only worker of the first model."""
        (pid,) = self.status.pids
        return pid

    @property
    def status(self) -> ModelStatus:
        return self.registry.statuses()[0]

    async def until(self, condition: Callable[[ModelStatus], bool]) -> ModelStatus:
        async with asyncio.timeout(30):
            while not any(condition(status) for status in self.seen):
                self._changed.clear()
                await self._changed.wait()
        return self.status

    async def until_stats(self, condition: Callable[[EngineStats], bool]) -> EngineStats:
        """Poll, since stats come with every step and tell nobody."""
        async with asyncio.timeout(30):
            while (stats := self.status.stats) is None or not condition(stats):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return stats

    async def answer(
        self, prompt: str, name: str = "m0", *, within: float | None = None, **fields: object
    ) -> str:
        deadline = None if within is None else time.monotonic() + within
        async with self.registry.acquire(name, deadline) as model:
            return "".join([chunk.text async for chunk in generate(model, prompt, **fields)])

    def _listen(self, status: ModelStatus) -> None:
        self.seen.append(status)
        self._changed.set()


def generate(model: LanguageModel, prompt: str, **fields: object) -> AsyncIterator[Chunk]:
    fields = {"request_id": "r", **fields}
    return model.generate(GenerationRequest(prompt=prompt, **fields))  # type: ignore[arg-type]


def unknown_size(_spec: ModelSpec) -> None:
    """A script has no files that could be measured."""


def spec(version: int, source: str = "good", name: str = "m0", **fields: object) -> ModelSpec:
    return ModelSpec(name=name, source=source, version=version, **fields)  # type: ignore[arg-type]


async def load(served: Served, version: int, source: str = "good", **fields: object) -> None:
    """Load a version of `m0` and wait until that has ended, well or not."""
    served.seen.clear()
    await served.registry.load(spec(version, source, **fields), who="test")
    await served.until(lambda s: s.version == version and s.state in ("ready", "active", "failed"))


def states(served: Served) -> dict[str, str]:
    return {status.model_id: status.state for status in served.registry.statuses()}


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - not everything is told
            await asyncio.sleep(0.01)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - a count, whatever else runs


def own_threads() -> set[threading.Thread]:
    """All but those that the loop keeps for `asyncio.to_thread`."""
    return {each for each in threading.enumerate() if not each.name.startswith("asyncio_")}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def serving(
    state_dir: Path,
    *sources: str,
    specs: Sequence[ModelSpec] = (),
    patience: Patience = IMPATIENT,
    wait: bool = True,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve specs, or scripted models `m0`, `m1`, ..., and check that nothing is left of them."""
    threads, tasks = own_threads(), asyncio.all_tasks()
    descriptors = open_descriptors()
    options = {"command": COMMAND, "sizes": unknown_size, **options}
    registry = Registry(state_dir, new_router=new_router, patience=patience, **options)
    served = Served(registry)
    specs = specs or [
        ModelSpec(name=f"m{number}", source=source)
        for number, source in enumerate(sources or ("good",))
    ]
    await registry.start(specs)
    try:
        if wait:
            async with asyncio.timeout(30):
                await registry.loaded()
        yield served
    finally:
        await registry.close()
        pids = {pid for status in served.seen for pid in status.pids}
    assert not [pid for pid in pids if is_alive(pid)]
    assert not asyncio.all_tasks() - tasks - {asyncio.current_task()}
    for thread in threading.enumerate():
        if "waitpid" in thread.name:  # asyncio's, which ends just after its process
            thread.join(10)
    assert own_threads() <= threads
    assert open_descriptors() == descriptors
