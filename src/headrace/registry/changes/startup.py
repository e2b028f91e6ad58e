"""Takes up what was left at the last end and what is declared, and loads it."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.errors import DrainingError
from headrace.registry.catalogue import Catalogue
from headrace.registry.changes.first_loads import FirstLoads
from headrace.registry.changes.reconcile import reconcile
from headrace.registry.journal import Journal
from headrace.registry.served import ServedModel
from headrace.registry.spec import ModelSpec
from headrace.registry.storage.stored import StoredModel, StoredVersion
from headrace.registry.version import Version
from headrace.registry.waiting import all_of

UPSTREAM_PATIENCE = 5.0  # seconds in which upstreams that are there have answered


class Startup:
    """Begins the loads, and knows which of them the server waits for."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        journal: Journal,
        loads: FirstLoads,
        new_version: Callable[[StoredVersion], Version],
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._loads = loads
        self._new_version = new_version
        self._awaited: list[tuple[Version, asyncio.Task[None]]] = []

    async def begin(self, specs: Sequence[ModelSpec]) -> None:
        plan = reconcile(specs, await self._journal.read())
        for name in plan.forgotten:
            await self._journal.forget(name)
        resumed = await self._journal.running_loads()
        for stored in plan.models:
            if stored.name in plan.changed:
                await self._journal.save_model(stored)
            self._take_up(stored, resumed)
        for change_id in resumed.values():
            await self._journal.end(change_id, "undone")  # of what is not wanted any more

    async def loaded(self) -> None:
        """Wait until what is declared or active is ready; raise why, if that will never be.

        A version of upstreams alone is waited for a moment only: they may come at any time.
        """
        await all_of(_raise_if_failed(*each) for each in self._awaited)

    def _take_up(self, stored: StoredModel, resumed: dict[str, int]) -> None:
        """Make a model as it was left or declared, and begin to load what is to be loaded.

        Takes the changes that it resumes, by model id.
        """
        model = ServedModel(stored.name, stored.declaration)
        self._catalogue.models[stored.name] = model
        for each in stored.versions:
            model.versions[each.spec.version] = self._new_version(each)
        model.active = model.versions.get(stored.active or 0)
        model.previous = model.versions.get(stored.previous or 0)
        for version in model.versions.values():
            if version.state == "loading":
                load = self._loads.begin(model, version, resumed.pop(version.model_id, None))
                if version.is_declared or version is model.active:
                    self._awaited.append((version, load))


async def _raise_if_failed(version: Version, load: asyncio.Task[None]) -> None:
    timeout = None if version.spec.has_workers else UPSTREAM_PATIENCE
    await asyncio.wait([load], timeout=timeout)
    if not load.done():
        return
    if load.cancelled():
        raise DrainingError("the server was stopped while loading", retry_after=1.0)
    if version.is_declared and version.failure is not None:
        raise version.failure
