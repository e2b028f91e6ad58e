"""Moves a model's name from one version to another that is loaded, or was: swap and rollback."""

import time
from dataclasses import replace

from headrace.errors import ConflictError
from headrace.registry.catalogue import Catalogue, split
from headrace.registry.changes.admission import available_memory
from headrace.registry.changes.noting import ended_if_it_fails
from headrace.registry.changes.pointer import Pointer, Swap
from headrace.registry.changes.revival import bring_back
from headrace.registry.changes.safety import (
    SafetyReport,
    SystemHealth,
    UnsafeSwapError,
    safety_report,
)
from headrace.registry.drain import Drain
from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.served import ServedModel
from headrace.registry.storage.stored import ChangeKind
from headrace.registry.version import Version


class Swaps:
    """Checks first; a version without workers is brought back before the pointer moves."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        journal: Journal,
        residency: Residency,
        pointer: Pointer,
        drain: Drain,
    ) -> None:
        self._catalogue = catalogue
        self._journal = journal
        self._residency = residency
        self._pointer = pointer
        self._drain = drain

    def safety(self, model_id: str) -> SafetyReport:
        model, version = self._catalogue.version(model_id)
        return self._report(model, version, model.change)

    async def swap(self, model_id: str, who: str, deadline: float | None) -> Swap:
        self._drain.refuse_change()
        name, _ = split(model_id)
        async with self._catalogue.changing(name, "swap") as model:
            _, version = self._catalogue.version(model_id)
            report = self._report(model, version, None)
            if not report.safe:
                raise UnsafeSwapError(report)
            return await self._move(model, version, "swap", who, deadline)

    async def rollback(self, name: str, who: str, deadline: float | None) -> Swap:
        self._drain.refuse_change()
        async with self._catalogue.changing(name, "rollback") as model:
            version = _before(model)
            return await self._move(model, version, "rollback", who, deadline)

    async def _move(
        self,
        model: ServedModel,
        version: Version,
        kind: ChangeKind,
        who: str,
        deadline: float | None,
    ) -> Swap:
        with version.hold():  # so that nothing takes its workers meanwhile
            if version.refusal is None:
                return await self._pointer.move(model, version, kind, who)
            started = time.perf_counter()
            change_id = await self._journal.begin(
                kind, model.name, previous=model.active, active=version, who=who
            )
            async with ended_if_it_fails(self._journal, change_id):
                await bring_back(self._residency, version, deadline)
                swap = await self._pointer.activate(model, version, change_id)
            return replace(swap, seconds=time.perf_counter() - started)

    def _report(self, model: ServedModel, version: Version, change: str | None) -> SafetyReport:
        status = version.status()
        system = SystemHealth(
            is_draining=self._drain.has_begun,
            is_store_writable=self._journal.is_writable,
            available_memory=available_memory(),
        )
        return safety_report(
            version.model_id,
            state=status.state,
            is_answering=status.is_answering,
            phase=status.phase,
            change=change,
            system=system,
            reason=status.reason,
            score=status.health_score,
            score_reason=version.health.reason,
            is_active=model.active is version,
        )


def _before(model: ServedModel) -> Version:
    """Where a rollback leads; it is only ready, not deprecated, if it still loaded at the swap."""
    version = model.previous
    if version is None:
        raise ConflictError(f"{model.name}: there is no version to roll back to")
    if version.state not in ("ready", "deprecated"):
        raise ConflictError(
            f"{model.name}: there is no version to roll back to, {version.model_id} is"
            f" {version.state}"
        )
    return version
