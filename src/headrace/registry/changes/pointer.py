"""Moves the pointer of a model from one version to another, and sees the replaced one out."""

import time
from dataclasses import dataclass

import structlog

from headrace.registry.catalogue import Catalogue
from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.served import ServedModel
from headrace.registry.storage.stored import ChangeKind
from headrace.registry.tasks import Tasks
from headrace.registry.version import Version

log = structlog.get_logger("headrace.registry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A pointer that was moved, and the seconds that this took."""

    previous: str | None
    active: str
    seconds: float


class Pointer:
    """Writes the move down first: a server that is killed begins with the newer version."""

    def __init__(
        self, catalogue: Catalogue, journal: Journal, residency: Residency, tasks: Tasks
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._residency = residency
        self._tasks = tasks

    async def move(self, model: ServedModel, version: Version, kind: ChangeKind, who: str) -> Swap:
        """Point to a version that answers."""
        started, previous = time.perf_counter(), model.replaced_by(version)
        await self._journal.move(kind, model, version, previous, who)
        return self._point(model, version, started)

    async def activate(self, model: ServedModel, version: Version, change_id: int) -> Swap:
        """End a change that has begun before by pointing to its version."""
        started, previous = time.perf_counter(), model.replaced_by(version)
        await self._journal.activate(model, version, previous, change_id)
        return self._point(model, version, started)

    async def unload(self, model: ServedModel, version: Version) -> None:
        """Let it end when nobody uses it any more; `Catalogue.begin_to_end` has come before."""
        await version.unused()
        await self._residency.take_down(version)
        self._residency.forget(version)
        self._catalogue.forget(model, version)
        log.info("model.unloaded", model=version.model_id)

    def _point(self, model: ServedModel, version: Version, started: float) -> Swap:
        previous, replaced = model.replaced_by(version), model.active
        model.point_to(version)
        if replaced is not None:
            self._residency.look_again(replaced)  # the name means another one now
        seconds = time.perf_counter() - started
        old = None if previous is None else previous.model_id
        log.info("model.active", model=version.model_id, previous=old, seconds=round(seconds, 4))
        if previous is not None:
            self.retire(model, previous)
        return Swap(previous=old, active=version.model_id, seconds=seconds)

    def retire(self, model: ServedModel, version: Version) -> None:
        """See out one that is not active any more; one that loads still is seen out after that."""
        if version.spec.retain != "warm":
            self._tasks.start(self._end_when_unused(model, version))

    async def _end_when_unused(self, model: ServedModel, version: Version) -> None:
        while _is_replaced(model, version):
            await version.unused()
            async with model.turn:  # a change may bring it back, and a request may have come
                if not _is_replaced(model, version):
                    return
                if version.num_leases == 0:
                    await self._see_out(model, version)
                    return

    async def _see_out(self, model: ServedModel, version: Version) -> None:
        if version.spec.retain == "none":
            self._catalogue.begin_to_end(version)
            await self._journal.note_gone(version)
            await self.unload(model, version)
        else:
            await self._residency.take_down(version)


def _is_replaced(model: ServedModel, version: Version) -> bool:
    """Whether it is what a swap left behind."""
    return model.active is not version and version.state in ("ready", "deprecated")
