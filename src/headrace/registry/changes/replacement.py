"""Swaps to a version for which there is no memory beside the active one: mode `queue`."""

import time
from dataclasses import replace

import structlog

from headrace.errors import ConflictError, HeadraceError
from headrace.registry.catalogue import Catalogue
from headrace.registry.changes.first_loads import FirstLoads
from headrace.registry.changes.memory import MemoryBook
from headrace.registry.changes.noting import ended_if_it_fails
from headrace.registry.changes.pointer import Pointer, Swap
from headrace.registry.changes.revival import bring_back, unused
from headrace.registry.drain import Drain
from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.served import ServedModel
from headrace.registry.version import Version

log = structlog.get_logger("headrace.registry")


class Replacement:
    """Requests wait while the old version ends and the new one loads, or the old one comes back."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        journal: Journal,
        residency: Residency,
        memory: MemoryBook,
        pointer: Pointer,
        loads: FirstLoads,
        drain: Drain,
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._residency = residency
        self._memory = memory
        self._pointer = pointer
        self._loads = loads
        self._drain = drain

    async def replace(self, version: Version, who: str, deadline: float | None) -> Swap:
        self._drain.refuse_change()
        async with self._catalogue.changing(version.spec.name, "replace") as model:
            started = time.perf_counter()
            model.refuse_known(version.spec.version)
            if (old := model.active) is None:
                raise ConflictError(f"{model.name} has no active version to replace: load one")
            await self._memory.require_instead(version, old)  # while the old one still answers
            change_id = await self._journal.begin(
                "replace", model.name, previous=old, active=version, who=who
            )
            async with ended_if_it_fails(self._journal, change_id):
                swap = await self._exchange(model, old, version, change_id, deadline)
            return replace(swap, seconds=time.perf_counter() - started)

    async def _exchange(
        self,
        model: ServedModel,
        old: Version,
        version: Version,
        change_id: int,
        deadline: float | None,
    ) -> Swap:
        with model.closed():
            try:
                await self._load_instead(model, old, version, deadline)
                return await self._pointer.activate(model, version, change_id)
            except HeadraceError:
                await self._take_back(model, version)
                await self._return_to(old)
                raise
            finally:
                self._memory.settle(version)

    async def _load_instead(
        self, model: ServedModel, old: Version, version: Version, deadline: float | None
    ) -> None:
        """The memory of one for the other.

        Only the move of the pointer writes the new one down: a server that is killed amid this must
        not begin with both.
        """
        await unused(old, deadline)
        await self._residency.take_down(old)
        await self._memory.admit(version)
        model.put(version)
        await self._loads.bring_up(version, note=False, deadline=deadline)

    async def _take_back(self, model: ServedModel, version: Version) -> None:
        """A version that failed says why; one that only the pointer could not be moved to goes."""
        await self._residency.take_down(version)
        if version.state == "ready":
            self._catalogue.begin_to_end(version)
            self._residency.forget(version)
            self._catalogue.forget(model, version)

    async def _return_to(self, old: Version) -> None:
        if old.is_up or old.state == "failed":
            return
        try:
            await bring_back(self._residency, old)
        except HeadraceError as error:  # the next request tries again
            log.error("model.not_brought_back", model=old.model_id, reason=error.message)  # noqa: TRY400
