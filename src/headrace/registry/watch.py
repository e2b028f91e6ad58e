"""Tells any number of readers what changed; a slow one misses steps, never the last state."""

import asyncio
import weakref
from collections.abc import AsyncIterator

from headrace.registry.status import ModelStatus


class Watchers:
    """Belongs to one event loop; holds at most one status a version for each reader."""

    def __init__(self) -> None:
        # Whoever drops the iterator is forgotten, also when it was never read.
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._is_closed = False

    def tell(self, status: ModelStatus) -> None:
        for reader in self._readers:
            reader.news[status.model_id] = status
            reader.arrived.set()

    def close(self) -> None:
        """End every reader once it has read what there is."""
        self._is_closed = True
        for reader in self._readers:
            reader.arrived.set()

    def watch(self) -> AsyncIterator[ModelStatus]:
        """From this call on, for as long as the iterator is kept."""
        reader = _Reader()
        self._readers.add(reader)
        return self._read(reader)

    async def _read(self, reader: "_Reader") -> AsyncIterator[ModelStatus]:
        while reader.news or not self._is_closed:
            await reader.arrived.wait()
            reader.arrived.clear()
            while reader.news:
                yield reader.news.pop(next(iter(reader.news)))


class _Reader:
    """What one reader has not seen yet, by model id."""

    def __init__(self) -> None:
        self.news: dict[str, ModelStatus] = {}
        self.arrived = asyncio.Event()
