"""What a server does unasked: probes versions, and ends the workers of those that nobody uses."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.version import Version
from headrace.registry.workers.patience import Patience

log = structlog.get_logger("headrace.registry")


class Upkeep:
    """Looks at every version once a tick; one that takes long to answer holds up no other."""

    def __init__(
        self,
        patience: Patience,
        versions: Callable[[], Iterable[Version]],
        residency: Residency,
        journal: Journal,
    ) -> None:
        self._patience = patience
        self._versions = versions
        self._residency = residency
        self._journal = journal
        self._task: asyncio.Task[None] | None = None
        self._visits: dict[Version, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="upkeep")

    async def close(self) -> None:
        tasks = list(self._visits.values())
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._patience.tick)
            with _surviving():
                await self._tick()

    async def _tick(self) -> None:
        if not self._journal.is_writable:
            await self._journal.look_again()
        for version in self._versions():
            if version not in self._visits:
                self._visit(version)

    def _visit(self, version: Version) -> None:
        visit = asyncio.create_task(self._look_after(version), name=f"upkeep-{version.model_id}")
        self._visits[version] = visit
        visit.add_done_callback(lambda _: self._visits.pop(version))

    async def _look_after(self, version: Version) -> None:
        with _surviving(model=version.model_id):
            now = time.monotonic()
            if self._is_unwanted(version, now):
                log.info("model.idle", model=version.model_id)
                await self._residency.end_idle(version)
            elif self._is_due(version, now):
                await _probe(version)
            elif version.state == "active":
                await self._residency.try_again(version)

    def _is_unwanted(self, version: Version, now: float) -> bool:
        limit = version.spec.idle_unload_after
        return (
            limit is not None
            and version.is_idle
            and version.state in ("active", "ready")
            and now - version.last_used >= limit
        )

    def _is_due(self, version: Version, now: float) -> bool:
        since = now - version.checked_at
        if not version.health.is_in_doubt:  # then its own requests tell how it is
            since = min(since, now - version.last_used) if version.is_idle else 0.0
        return version.is_proven and since >= self._patience.between_probes


async def _probe(version: Version) -> None:
    found = await version.check_health()
    if found is not None and not found.is_alive and not found.is_busy:
        log.warning("model.unhealthy", model=version.model_id, reason=found.reason)


@contextmanager
def _surviving(**fields: str) -> Iterator[None]:
    """Whatever fails once is told, and tried again at the next tick."""
    try:
        yield
    except Exception:
        log.exception("upkeep.broke", **fields)
