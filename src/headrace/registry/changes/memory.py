"""Whether a version that is to be loaded fits beside those that are there or on their way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import structlog

from headrace.errors import HeadraceError
from headrace.registry.changes.admission import available_memory, require_memory
from headrace.registry.residency import Residency
from headrace.registry.spec import ModelSpec
from headrace.registry.version import Version

MemoryNeeded = Callable[[ModelSpec], int | None]
"""Bytes that all workers of a version will hold, or None if that cannot be known; blocks."""

log = structlog.get_logger("headrace.registry")


class MemoryBook:
    """Remembers what was promised to versions that have not taken it yet.

    The residency asks it about every version that is loaded again.
    """

    def __init__(
        self,
        needed: MemoryNeeded,
        versions: Callable[[], Iterable[Version]],
        residency: Residency,
    ) -> None:
        self._needed = needed
        self._versions = versions
        self._residency = residency
        self._promised: dict[Version, int] = {}
        self._turn = asyncio.Lock()
        residency.with_memory = self._admitted

    async def admit(self, version: Version) -> None:
        """Promise it memory until `settle`; InsufficientMemoryError when there is too little.

        Versions that a swap has replaced and that nobody uses give theirs first.
        """
        if version in self._promised:
            return
        try:
            needed = await self._needed_by(version)
        except HeadraceError as error:
            log.info("model.not_sized", model=version.model_id, reason=error.message)
            return  # its load will tell why it cannot be
        if needed is None:
            return  # its worker counts, once it has the files
        async with self._turn:
            await self._make_room(version, needed)
            self._promised[version] = needed

    async def require_instead(self, version: Version, old: Version) -> None:
        """Raise why it could not be loaded once `old` has ended; promises nothing.

        ModelFileError and ConfigurationError are those that its load would end with.
        """
        needed = await self._needed_by(version)
        available = self._unpromised()
        if needed is not None and available is not None:
            rest = [each for each in self._replaced_and_idle() if each is not old]
            left = available + sum(each.footprint for each in (old, *rest))
            require_memory(needed, available=left, model_id=version.model_id)

    def settle(self, version: Version) -> None:
        """It has what it needs by now, or needs it no more."""
        self._promised.pop(version, None)

    @asynccontextmanager
    async def _admitted(self, version: Version) -> AsyncIterator[None]:
        try:
            await self.admit(version)
            yield
        finally:
            self.settle(version)

    async def _needed_by(self, version: Version) -> int | None:
        if not version.spec.has_workers:
            return None  # it takes none of this machine's
        if version.measured is not None:
            return version.measured
        return await asyncio.to_thread(self._needed, version.spec)

    async def _make_room(self, version: Version, needed: int) -> None:
        while (available := self._unpromised()) is not None and needed > available:
            warm = self._replaced_and_idle()
            if needed > available + sum(each.footprint for each in warm):
                require_memory(needed, available=available, model_id=version.model_id)
            victim = min(warm, key=lambda each: each.last_used)
            log.info("model.evicted", model=victim.model_id, by=version.model_id)
            await self._residency.take_down(victim)

    def _unpromised(self) -> int | None:
        available = available_memory()
        if available is None:
            return None
        # Mapped weights would be read from disk for each token if others took their memory.
        mapped = sum(version.mapped_bytes for version in self._versions())
        owed = (max(0, size - version.footprint) for version, size in self._promised.items())
        return available - mapped - sum(owed)

    def _replaced_and_idle(self) -> list[Version]:
        return [v for v in self._versions() if v.state == "deprecated" and v.is_idle]
