"""Which models this server serves: leases for requests, changes for whoever runs it.

Puts the registry's parts together; what a change does is in `changes`, what a version is in
`version`, and what is remembered in `storage`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from headrace.endpoints import NewRouter, Router
from headrace.registry.catalogue import Catalogue, split
from headrace.registry.changes.admission import memory_needed
from headrace.registry.changes.first_loads import FirstLoads
from headrace.registry.changes.loading import Loading
from headrace.registry.changes.memory import MemoryBook, MemoryNeeded
from headrace.registry.changes.pointer import Pointer, Swap
from headrace.registry.changes.replacement import Replacement
from headrace.registry.changes.safety import SafetyReport
from headrace.registry.changes.startup import Startup
from headrace.registry.changes.swaps import Swaps
from headrace.registry.drain import Drain
from headrace.registry.journal import Journal
from headrace.registry.lending import Lending
from headrace.registry.lifecycle import State
from headrace.registry.residency import Residency
from headrace.registry.spec import ModelSpec
from headrace.registry.status import ModelStatus
from headrace.registry.storage.stored import Change, ChangeKind, Outcome, StoredVersion
from headrace.registry.tasks import Tasks
from headrace.registry.upkeep import Upkeep
from headrace.registry.version import Version
from headrace.registry.watch import Watchers
from headrace.registry.workers.patience import Patience
from headrace.registry.workers.process import WORKER_COMMAND
from headrace.registry.workers.workers import Workers
from headrace.telemetry.logging import LogFormat

__all__ = ["ModelStatus", "Registry", "Swap"]

Listener = Callable[[ModelStatus], None]
IN_MEMORY = "sqlite://"


class Registry:
    """Every model of this server. Of a name's versions one is active."""

    def __init__(
        self,
        state_dir: Path,
        *,
        new_router: NewRouter,
        database_url: str = IN_MEMORY,
        server: str = "",
        max_loaded_models: int | None = None,
        log_format: LogFormat = "text",
        log_dir: Path | None = None,
        command: Sequence[str] = WORKER_COMMAND,
        sizes: MemoryNeeded | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._new_router = new_router
        self._patience = patience = patience or Patience()
        self._workers = Workers(
            state_dir=state_dir,
            log_format=log_format,
            log_dir=log_dir,
            command=command,
            patience=patience,
        )
        self._listeners: list[Listener] = []
        self._watchers = Watchers()
        self._drain = drain = Drain()
        self._catalogue = catalogue = Catalogue()
        self._tasks = tasks = Tasks()
        self._journal = journal = Journal(database_url, server)
        self._residency = residency = Residency(max_loaded_models)
        self._lending = Lending(catalogue, residency, drain)
        self._upkeep = Upkeep(patience, catalogue.versions, residency, journal)
        needed = sizes or partial(memory_needed, state_dir=state_dir)
        memory = MemoryBook(needed, catalogue.versions, residency)
        pointer = Pointer(catalogue, journal, residency, tasks)
        loads = FirstLoads(
            journal=journal, residency=residency, memory=memory, pointer=pointer, tasks=tasks
        )
        self._startup = Startup(
            catalogue=catalogue, journal=journal, loads=loads, new_version=self._new_version
        )
        self._loading = Loading(
            catalogue=catalogue,
            journal=journal,
            residency=residency,
            memory=memory,
            pointer=pointer,
            loads=loads,
            tasks=tasks,
            drain=drain,
        )
        self._swaps = Swaps(
            catalogue=catalogue, journal=journal, residency=residency, pointer=pointer, drain=drain
        )
        self._replacement = Replacement(
            catalogue=catalogue,
            journal=journal,
            residency=residency,
            memory=memory,
            pointer=pointer,
            loads=loads,
            drain=drain,
        )

    # From start to end

    async def start(self, specs: Sequence[ModelSpec]) -> None:
        """Take up what was left and what is declared, and begin to load; `loaded` waits for it."""
        await self._startup.begin(specs)
        self._upkeep.start()

    async def loaded(self) -> None:
        """Wait until what is declared or active is ready; raise why, if that will never be."""
        await self._startup.loaded()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - part of the contract
        """Refuse new work, let what has begun end, changes too; whether all did in time."""
        self._drain.begin(timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._lending.unused()
                await self._tasks.asked_for()
        except TimeoutError:
            return False
        return True

    async def close(self, drain_timeout: float = 0.0) -> None:
        """Stop every worker; what still runs gets the timeout. Nothing is left behind."""
        self._drain.begin(drain_timeout)
        await self._upkeep.close()
        await self._tasks.close()
        versions = self._catalogue.versions()
        for version in versions:
            if version.is_up and version.lifecycle.can_move("unloading"):
                version.move("unloading")
        await asyncio.gather(*(self._residency.take_down(v, drain_timeout) for v in versions))
        self._watchers.close()
        await self._journal.close()

    # What there is

    @property
    def is_ready(self) -> bool:
        """Whether at least one active version answers, or would if it was asked."""
        active = [model.active for model in self._catalogue.models.values() if model.active]
        return not self._drain.has_begun and any(
            version.is_answering
            or (version.state == "active" and self._residency.would_wake(version))
            for version in active
        )

    @property
    def num_leases(self) -> int:
        return self._lending.num_leases

    def statuses(self) -> list[ModelStatus]:
        return [version.status() for version in self._catalogue.versions()]

    def available(self) -> list[ModelStatus]:
        """The versions that answer, or would once a request has woken them."""
        versions = self._catalogue.versions()
        return [v.status() for v in versions if v.is_answering or self._residency.would_wake(v)]

    def status(self, model: str) -> ModelStatus:
        """Of a version by its id, of the active one by its name."""
        _, number = split(model)
        if number is None:
            return self._catalogue.find(model).status()
        return self._catalogue.version(model)[1].status()

    async def history(self, name: str | None, limit: int) -> list[Change]:
        """What was done, the newest first."""
        return await self._journal.history(name, limit)

    def listen(self, listener: Listener) -> None:
        """Call it with the new status at every change of state, phase or progress."""
        self._listeners.append(listener)

    def listen_for_ends(
        self,
        *,
        of_change: Callable[[ChangeKind, Outcome], None],
        of_version: Callable[[str, int], None],
    ) -> None:
        """Call one when a change has ended, one with the name and number of what is gone."""
        self._journal.on_end = of_change
        self._catalogue.on_forgotten = of_version

    def watch(self) -> AsyncIterator[ModelStatus]:
        """Every change from now on; of several changes of a version a slow reader sees the last."""
        return self._watchers.watch()

    # Requests

    def acquire(
        self, name: str, deadline: float | None = None
    ) -> AbstractAsyncContextManager[Router]:
        """Lease a model by name, or one version by `name@version`, for one request.

        One that sleeps, or is being replaced, is waited for until `deadline` (monotonic).
        """
        return self._lending.acquire(name, deadline)

    # Changes

    async def load(self, spec: ModelSpec, *, who: str) -> ModelStatus:
        """Begin to load a new version; it goes on in the background.

        ConflictError when it is there, InsufficientMemoryError when it cannot fit.
        """
        version = self._new_version(_wanted(spec))
        await self._tasks.to_its_end(self._loading.load(version, who))
        return version.status()

    def safety(self, model_id: str) -> SafetyReport:
        """Whether a swap to this version would be let through, and if not, why."""
        return self._swaps.safety(model_id)

    async def swap(self, model_id: str, *, who: str, deadline: float | None = None) -> Swap:
        """Make a version that is ready the active one; UnsafeSwapError says why it may not be.

        One that is idle is loaded first; DeadlineError past `deadline` (monotonic), as for the
        other changes, while it waits for a place.
        """
        return await self._tasks.to_its_end(self._swaps.swap(model_id, who, deadline))

    async def rollback(self, name: str, *, who: str, deadline: float | None = None) -> Swap:
        """Return to the version that was active before; load it again if it is cold."""
        return await self._tasks.to_its_end(self._swaps.rollback(name, who, deadline))

    async def replace(self, spec: ModelSpec, *, who: str, deadline: float | None = None) -> Swap:
        """Swap to a version that cannot be in memory beside the active one.

        New requests wait while the old one ends and the new one loads; if that fails, the old one
        comes back. A source that is none, or too large, is refused before anything ends.
        """
        version = self._new_version(_wanted(spec))
        return await self._tasks.to_its_end(self._replacement.replace(version, who, deadline))

    async def unload(self, model: str, *, who: str) -> list[ModelStatus]:
        """Begin to unload a version by its id, or a model with all versions by its name.

        Requests that have begun end on it. ConflictError for the active version by its id.
        """
        versions = await self._tasks.to_its_end(self._loading.unload(model, who))
        return [version.status() for version in versions]

    # Parts

    def _new_version(self, stored: StoredVersion) -> Version:
        return Version(
            stored.spec,
            state=_first_state(stored),
            is_declared=stored.is_declared,
            reason=stored.reason,
            new_worker=self._workers.new,
            new_router=self._new_router,
            patience=self._patience,
            on_change=self._tell,
            on_unused=self._residency.someone_left,
        )

    def _tell(self, version: Version) -> None:
        status = version.status()
        for listener in self._listeners:
            listener(status)
        self._watchers.tell(status)


def _wanted(spec: ModelSpec) -> StoredVersion:
    return StoredVersion(spec=spec, state="loading", is_declared=False)


def _first_state(stored: StoredVersion) -> State:
    """What was replaced stays out of memory; what failed is tried again only where declared."""
    if stored.state == "deprecated" or (stored.state == "failed" and not stored.is_declared):
        return stored.state
    return "loading"
