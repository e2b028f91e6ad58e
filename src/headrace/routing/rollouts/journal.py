"""The store as the event loop sees it: a thread of its own, in which writes keep their order."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.errors import DrainingError, HeadraceError
from headrace.routing.rollouts.decision import Decision
from headrace.routing.rollouts.record import Record
from headrace.routing.rollouts.rollout import Rollout

if TYPE_CHECKING:
    from headrace.routing.rollouts.store import RolloutStore

T = TypeVar("T")

log = structlog.get_logger("headrace.routing")


class RolloutJournal:
    """What was decided is in force at once, and written as soon as that can be."""

    def __init__(self, database_url: str, server: str) -> None:
        self._database_url = database_url
        self._server = server
        self._thread = ThreadPoolExecutor(1, "headrace-rollouts")
        self._store: RolloutStore | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> list[tuple[Record, list[Decision]]]:
        """What there was when the server ended. ConfigurationError when that cannot be had."""
        return await self._in_thread(self._open)

    async def save(self, rollout: Rollout) -> None:
        """All that is not written of it yet; HeadraceError when that cannot be."""
        async with self._turn:
            if (store := self._store) is None:  # requests may come until the very end
                raise DrainingError("the server is shutting down", retry_after=1.0)
            record, decisions = rollout.record, list(rollout.unsaved)

            def write() -> None:
                store.save(record, decisions)
                del rollout.unsaved[: len(decisions)]

            await self._in_thread(write)

    async def note(self, rollouts: Iterable[Rollout]) -> None:
        """Save what has changed, now or with what is noted later."""
        for rollout in list(rollouts):
            if rollout.unsaved:
                try:
                    await self.save(rollout)
                except HeadraceError as error:
                    log.warning("rollout.unwritable", rollout=rollout.id, reason=error.message)
                    return

    async def close(self) -> None:
        """May be called again."""
        store, self._store = self._store, None
        if store is not None:
            await self._in_thread(store.close)
        self._thread.shutdown()

    def _open(self) -> list[tuple[Record, list[Decision]]]:
        # Slow to import: in its own thread, while models load.
        from headrace.routing.rollouts.store import RolloutStore  # noqa: PLC0415

        self._store = RolloutStore(self._database_url, self._server)
        return self._store.read()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """To its end, whoever is cancelled meanwhile: or what is written would be so again."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise
