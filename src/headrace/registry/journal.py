"""The store as the event loop sees it: a thread of its own, in which writes keep their order."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.errors import DrainingError, HeadraceError
from headrace.registry.served import ServedModel
from headrace.registry.storage.stored import (
    Change,
    ChangeKind,
    Outcome,
    StoredModel,
    StoredState,
    StoredVersion,
)
from headrace.registry.version import Version

if TYPE_CHECKING:
    from headrace.registry.storage.store import Store

T = TypeVar("T")

MAX_OWED = 1000  # ends of changes that could not be written yet

log = structlog.get_logger("headrace.registry")


class Journal:
    """Raises HeadraceError where nothing may happen that is not written down.

    What has happened already is noted as far as possible: `is_writable` tells whether the last
    write went well.
    """

    def __init__(self, database_url: str, server: str) -> None:
        self._database_url = database_url
        self._server = server
        self._thread = ThreadPoolExecutor(1, "headrace-store")
        self._store: Store | None = None
        self.is_writable = True
        self.on_end: Callable[[ChangeKind, Outcome], None] = lambda _kind, _outcome: None
        self._running: dict[int, ChangeKind] = {}
        self._owed: deque[Callable[[Store], None]] = deque(maxlen=MAX_OWED)

    async def read(self) -> list[StoredModel]:
        """Open it: what was there when the server ended. ConfigurationError when that cannot be."""
        return await self._in_thread(self._open)

    async def running_loads(self) -> dict[str, int]:
        """Loads to be taken up again, by model id; they end as every change does."""
        loads = await self._do(lambda store: store.running_loads())
        self._running |= dict.fromkeys(loads.values(), "load")
        return loads

    async def close(self) -> None:
        """May be called again."""
        store, self._store = self._store, None
        if store is not None:
            await self._in_thread(store.close)
        self._thread.shutdown()

    async def history(self, name: str | None, limit: int) -> list[Change]:
        return await self._do(lambda store: store.history(name, limit))

    # Before it happens

    async def begin(
        self,
        kind: ChangeKind,
        name: str,
        *,
        previous: Version | None,
        active: Version | None,
        who: str,
    ) -> int:
        """Note that a change from one version to another begins; the answer is its id."""
        ids = [None if version is None else version.model_id for version in (previous, active)]
        change_id = await self._do(
            lambda store: store.begin(
                kind, name, previous=ids[0], active=ids[1], who=who, now=time.time()
            )
        )
        self._running[change_id] = kind
        return change_id

    async def activate(
        self, model: ServedModel, version: Version, previous: Version | None, change_id: int
    ) -> None:
        """The version is stored with it, if it was not before."""
        stored = _stored(version, "ready")
        before = None if previous is None else previous.spec.version
        await self._do(
            lambda store: store.activate(
                model.name, stored, previous=before, change_id=change_id, now=time.time()
            )
        )
        self._tell_of_end(change_id, "done")

    async def move(
        self,
        kind: ChangeKind,
        model: ServedModel,
        version: Version,
        previous: Version | None,
        who: str,
    ) -> None:
        """As `begin` and `activate` in one."""
        active = version.spec.version
        before = None if previous is None else previous.spec.version
        await self._do(
            lambda store: store.move(
                kind, model.name, active=active, previous=before, who=who, now=time.time()
            )
        )
        self.on_end(kind, "done")

    async def save_model(self, model: StoredModel) -> None:
        await self._do(lambda store: store.save_model(model))

    async def add(self, version: Version) -> None:
        """A version that is going to be loaded."""
        stored = _stored(version, "loading")
        await self._do(lambda store: store.save_version(version.spec.name, stored))

    async def remove(self, version: Version) -> None:
        spec = version.spec
        await self._do(lambda store: store.remove_version(spec.name, spec.version))

    async def forget(self, name: str) -> None:
        await self._do(lambda store: store.forget_model(name))

    async def empty(self, model: ServedModel) -> None:
        """A model without versions: a new one, or one that is declared and was unloaded."""
        empty = StoredModel(
            name=model.name,
            declaration=model.declaration,
            active=None,
            previous=None,
            versions=(),
        )
        await self.save_model(empty)

    # After it has happened

    async def note(self, version: Version, state: StoredState) -> None:
        if version.state == "unloading":
            return  # it is written off already
        stored = _stored(version, state)
        await self._try(lambda store: store.save_version(version.spec.name, stored))

    async def note_gone(self, version: Version) -> None:
        spec = version.spec
        await self._try(lambda store: store.remove_version(spec.name, spec.version))

    async def look_again(self) -> None:
        """Whether it has become writable; what could not be written is written then."""
        if await self._try(lambda store: store.try_to_write()):
            await self._pay()

    async def end(self, change_id: int | None, outcome: Outcome, detail: str | None = None) -> None:
        if change_id is not None:
            ended, now = change_id, time.time()
            self._owed.append(lambda store: store.end(ended, outcome, detail=detail, now=now))
            await self._pay()
            self._tell_of_end(change_id, outcome)

    def _tell_of_end(self, change_id: int, outcome: Outcome) -> None:
        if (kind := self._running.pop(change_id, None)) is not None:
            self.on_end(kind, outcome)

    def _open(self) -> list[StoredModel]:
        # Slow to import: in its own thread, while the workers begin.
        from headrace.registry.storage.store import Store  # noqa: PLC0415

        self._store = Store(self._database_url, self._server)
        return self._store.read()

    async def _pay(self) -> None:
        """Write the ends of changes, each once, until one cannot be written."""
        while self._owed:
            end = self._owed.popleft()
            if not await self._try(end):
                self._owed.appendleft(end)
                return

    async def _try(self, work: Callable[["Store"], object]) -> bool:
        try:
            await self._do(work)
        except HeadraceError as error:
            log.warning("journal.unwritable", reason=error.message)
            return False
        return True

    async def _do(self, work: Callable[["Store"], T]) -> T:
        if (store := self._store) is None:  # requests may come until the very end
            raise DrainingError("the server is shutting down", retry_after=1.0)
        try:
            done = await self._in_thread(lambda: work(store))
        except HeadraceError:
            self.is_writable = False
            raise
        self.is_writable = True
        return done

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _stored(version: Version, state: StoredState) -> StoredVersion:
    return StoredVersion(
        spec=version.spec, state=state, is_declared=version.is_declared, reason=version.reason
    )
