"""A registry in a process of its own, which gets to a point, says so, and waits to be killed.

`python registry_to_kill.py STATE_DIR POINT`; among what it logs is a line with `WORKERS` and the
process ids of its workers.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.registry.status import ModelStatus
from scripted_serving import COMMAND, IMPATIENT, new_router, unknown_size

WORKERS = "workers:"
SERVER = "127.0.0.1:8000"
DECLARED = ModelSpec(name="m0", source="good")
SECOND = ModelSpec(name="m0", source="good", version=2)
SLOW = ModelSpec(name="m0", source="slow", version=2)


def database(state_dir: Path) -> str:
    return f"sqlite:///{state_dir}/headrace.db"


async def get_to(registry: Registry, point: str) -> None:
    match point:
        case "loading":
            await registry.load(SLOW, who="test")
            await until(registry, "m0@2", lambda s: s.phase == "reading")
        case "swapped":
            await load_second(registry)
            await registry.swap("m0@2", who="test")
        case "replacing":
            replacing = asyncio.create_task(registry.replace(SLOW, who="test"))
            await until(registry, "m0@2", lambda s: s.phase == "reading")
            assert not replacing.done()
        case "unloading":
            await load_second(registry)
            await registry.acquire("m0@2").__aenter__()
            await registry.unload("m0@2", who="test")
        case "unloaded":
            await registry.unload("m0", who="test")


async def load_second(registry: Registry) -> None:
    await registry.load(SECOND, who="test")
    await until(registry, "m0@2", lambda s: s.state == "ready")


async def until(
    registry: Registry, model_id: str, condition: Callable[[ModelStatus], bool]
) -> None:
    while not any(s.model_id == model_id and condition(s) for s in registry.statuses()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def main(state_dir: Path, point: str) -> None:
    registry = Registry(
        state_dir,
        new_router=new_router,
        database_url=database(state_dir),
        server=SERVER,
        command=COMMAND,
        sizes=unknown_size,
        patience=IMPATIENT,
    )
    await registry.start([DECLARED])
    await registry.loaded()
    await get_to(registry, point)
    pids = [pid for status in registry.statuses() for pid in status.pids]
    print(WORKERS, *pids, flush=True)  # noqa: T201 - to the test
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
