"""Loads and unloads versions at run time. One change of a model at a time, each to its end."""

import asyncio

from headrace.errors import ConflictError, UnavailableError
from headrace.registry.catalogue import Catalogue, split
from headrace.registry.changes.first_loads import FirstLoads
from headrace.registry.changes.memory import MemoryBook
from headrace.registry.changes.noting import ended_if_it_fails
from headrace.registry.changes.pointer import Pointer
from headrace.registry.drain import Drain
from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.served import ServedModel
from headrace.registry.tasks import Tasks
from headrace.registry.version import Version

MAX_LOADS = 16  # under way at a time, of all models
MAX_FAILED = 8  # versions of a model whose reasons are kept


class Loading:
    """Checks a change, writes it down and makes it."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        journal: Journal,
        residency: Residency,
        memory: MemoryBook,
        pointer: Pointer,
        loads: FirstLoads,
        tasks: Tasks,
        drain: Drain,
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._residency = residency
        self._memory = memory
        self._pointer = pointer
        self._loads = loads
        self._tasks = tasks
        self._drain = drain

    async def load(self, version: Version, who: str) -> None:
        """Begin to load a new version; raises before anything of it is there when it may not."""
        self._drain.refuse_change()
        name = version.spec.name
        model = self._catalogue.models.setdefault(name, ServedModel(name))
        try:
            async with model.changing("load"):
                model.refuse_known(version.spec.version)
                self._catalogue.refuse_ending(version.model_id)
                self._refuse_too_many()
                await self._begin_to_load(model, version, who)
        finally:
            self._catalogue.forget_empty(model)

    async def unload(self, model: str, who: str) -> list[Version]:
        """A version by its id, a model with all its versions by its name."""
        self._drain.refuse_change()
        name, number = split(model)
        async with self._catalogue.changing(name, "unload") as served:
            if number is None:
                return await self._unload_model(served, who)
            _, version = self._catalogue.version(model)
            return await self._unload_version(served, version, who)

    async def _begin_to_load(self, model: ServedModel, version: Version, who: str) -> None:
        try:
            await self._memory.admit(version)
            change_id = await self._note_load(model, version, who)
        except BaseException:
            self._memory.settle(version)
            raise
        model.put(version)
        self._loads.begin(model, version, change_id)
        await self._forget_failed(model)

    async def _note_load(self, model: ServedModel, version: Version, who: str) -> int:
        if not model.others(version):
            await self._journal.empty(model)
        change_id = await self._journal.begin(
            "load", model.name, previous=model.active, active=version, who=who
        )
        async with ended_if_it_fails(self._journal, change_id):
            await self._journal.add(version)
        return change_id

    def _refuse_too_many(self) -> None:
        if self._catalogue.num_loads > MAX_LOADS:  # this one counts
            raise UnavailableError(
                f"{MAX_LOADS} versions are being loaded already, more at a time are not",
                retry_after=self._residency.load_seconds,
            )

    async def _forget_failed(self, model: ServedModel) -> None:
        """Keep the latest; what is declared is tried again at each start."""
        failed = [v for v in model.versions.values() if v.state == "failed" and not v.is_declared]
        failed = [v for v in failed if v is not model.active]
        for version in sorted(failed, key=lambda each: each.started_at)[:-MAX_FAILED]:
            self._catalogue.begin_to_end(version)
            await self._journal.note_gone(version)
            self._residency.forget(version)
            self._catalogue.forget(model, version)

    async def _unload_version(
        self, model: ServedModel, version: Version, who: str
    ) -> list[Version]:
        if model.active is version:
            raise ConflictError(
                f"{version.model_id} is active: swap to another version first, or unload the"
                f" whole model as `{model.name}`"
            )
        if not version.lifecycle.can_move("unloading"):
            raise ConflictError(f"{version.model_id} is already {version.state}")
        change_id = await self._journal.begin(
            "unload", model.name, previous=version, active=None, who=who
        )
        async with ended_if_it_fails(self._journal, change_id):
            if model.others(version):
                await self._journal.remove(version)
            else:
                await self._write_off(model)
        self._catalogue.begin_to_end(version)
        self._tasks.start(self._unload(model, [version], change_id))
        return [version]

    async def _unload_model(self, model: ServedModel, who: str) -> list[Version]:
        change_id = await self._journal.begin(
            "unload", model.name, previous=model.active, active=None, who=who
        )
        async with ended_if_it_fails(self._journal, change_id):
            await self._write_off(model)
        self._catalogue.models[model.name] = ServedModel(model.name, model.declaration)
        every = model.versions.values()
        versions = [each for each in every if each.lifecycle.can_move("unloading")]
        for version in versions:
            self._catalogue.begin_to_end(version)
        self._catalogue.forget_empty(self._catalogue.models[model.name])
        self._tasks.start(self._unload(model, versions, change_id))
        return versions

    async def _write_off(self, model: ServedModel) -> None:
        if model.declaration:
            await self._journal.empty(model)  # or the next start would take it for news
        else:
            await self._journal.forget(model.name)

    async def _unload(self, model: ServedModel, versions: list[Version], change_id: int) -> None:
        await asyncio.gather(*(self._end(model, version) for version in versions))
        await self._journal.end(change_id, "done")

    async def _end(self, model: ServedModel, version: Version) -> None:
        await self._loads.give_up(version)
        await self._pointer.unload(model, version)
