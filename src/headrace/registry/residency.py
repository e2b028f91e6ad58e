"""Which versions have workers when not all of them may, or need, have some.

A version that nobody uses gives its place to one that is wanted, the least recently used first; one
that is in use never does. A request holds no place while it waits for one, so no two can wait for
each other.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

import structlog

from headrace.errors import HeadraceError, NotReadyError
from headrace.registry.lifecycle import SERVING
from headrace.registry.version import Version
from headrace.registry.waiting import WaitingRoom, until

FIRST_ESTIMATE = 5.0  # seconds that a load takes, until one has been seen
FAILED_PAUSE = 10.0  # seconds after a load that failed before a request may start another one

_EVICTION_ORDER = {"deprecated": 0, "ready": 1, "active": 2}

log = structlog.get_logger("headrace.registry")


class Residency:
    """Brings versions up and takes them down; at most `max_loaded` have a place at a time."""

    def __init__(self, max_loaded: int | None) -> None:
        self._max_loaded = max_loaded
        self._residents: set[Version] = set()
        self._turn = asyncio.Lock()  # for a place, first come first served
        self._freed = asyncio.Event()
        self._startings: defaultdict[Version, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wakings: dict[Version, asyncio.Task[None]] = {}
        self._rooms: dict[Version, WaitingRoom] = {}
        self._not_before: dict[Version, float] = {}  # monotonic; of those whose last wake failed
        self.with_memory: Callable[[Version], AbstractAsyncContextManager[None]] = _unlimited
        """Held while a version that was loaded before is loaded again; raises if it cannot fit."""
        self.load_seconds = FIRST_ESTIMATE  # of the last load

    async def bring_up(self, version: Version, deadline: float | None = None) -> None:
        """Wait for a place and start the version; it has neither when this raises.

        DeadlineError when it has no place by the monotonic `deadline`.
        """
        late = f"the deadline passed while {version.model_id} waited for a place in memory"
        async with AsyncExitStack() as stack:
            async with until(deadline, late):  # a change and a request may want it at once
                await stack.enter_async_context(self._startings[version])
            if not version.is_proven:
                await self._bring_up(version, deadline, late)

    async def take_down(self, version: Version, drain_timeout: float = 0.0) -> None:
        """End its workers, also those that are on their way up after a sleep."""
        waking = self._wakings.get(version)
        if waking is not None and not waking.done():
            waking.cancel()
            await asyncio.wait([waking])
        await self._vacate(version, drain_timeout)

    async def end_idle(self, version: Version) -> None:
        """End its workers unless somebody uses them, or is about to."""
        if version.is_idle and not self._is_awaited(version):
            await self._vacate(version)

    def can_wake(self, version: Version) -> bool:
        """Whether it sleeps for lack of use alone, or is on its way up again."""
        starting = self._startings.get(version)
        is_coming = starting is not None and starting.locked() and version.state in SERVING
        return version.can_wake or is_coming or version in self._wakings

    def would_wake(self, version: Version) -> bool:
        """Whether a request would wake it, as far as can be told: the last wake did not fail."""
        return self.can_wake(version) and version not in self._not_before

    def look_again(self, version: Version) -> None:
        """Send who waits for it to wake back to look whom the name means now."""
        if (room := self._rooms.get(version)) is not None:
            room.call()

    async def wake(self, version: Version, deadline: float | None) -> None:
        """Wait, with others, until it is awake or taken down, or `look_again`; look then.

        NotReadyError when it could not be loaded, also a while later.
        """
        self._refuse_after_failure(version)
        waking = self._wakings.get(version) or self._begin_to_wake(version)
        room = self._rooms.setdefault(version, WaitingRoom(version.spec.engine.max_queued_requests))
        called = room.called
        try:
            # Not the task itself: it goes on when those who wait for it leave.
            await room.wait(
                lambda: asyncio.wait([waking, called], return_when=asyncio.FIRST_COMPLETED),
                deadline=deadline,
                retry_after=self.load_seconds,
            )
        finally:
            if room.num_waiting == 0:
                self._nobody_waits(version, waking)
        if called.done():
            return
        if not waking.cancelled():
            waking.result()
        self._refuse_after_failure(version)

    def someone_left(self) -> None:
        """A version has no more users: whoever waits for a place may look again."""
        self._freed.set()

    def forget(self, version: Version) -> None:
        """It is gone for good."""
        self._startings.pop(version, None)
        self._rooms.pop(version, None)
        self._not_before.pop(version, None)

    async def try_again(self, version: Version) -> None:
        """Wake it unasked: one that is not ready for requests since its wake failed gets none."""
        if self._may_try_again(version):
            await asyncio.wait([self._begin_to_wake(version)])

    def _may_try_again(self, version: Version) -> bool:
        has_place = self._max_loaded is None or len(self._residents) < self._max_loaded
        has_paused = time.monotonic() >= self._not_before.get(version, math.inf)
        return has_place and has_paused and version.can_wake and version not in self._wakings

    def _begin_to_wake(self, version: Version) -> asyncio.Task[None]:
        waking = asyncio.create_task(self._wake(version), name=f"wake-{version.model_id}")
        self._wakings[version] = waking
        waking.add_done_callback(lambda _: self._wakings.pop(version, None))
        return waking

    async def _wake(self, version: Version) -> None:
        async with self._startings[version]:
            pass  # a change that brings it up has done so, or failed
        if not version.can_wake:
            return
        log.info("model.waking", model=version.model_id)
        try:
            await self.bring_up(version)
        except HeadraceError as error:
            log.warning("model.wake_failed", model=version.model_id, reason=error.message)
            version.reason = error.message
            self._not_before[version] = time.monotonic() + FAILED_PAUSE

    def _refuse_after_failure(self, version: Version) -> None:
        pause = self._not_before.get(version, 0.0) - time.monotonic()
        if pause > 0:
            message = f"{version.model_id} could not be loaded again"
            raise NotReadyError(message, retry_after=pause)

    def _nobody_waits(self, version: Version, waking: asyncio.Task[None]) -> None:
        """A version that still waits for a place is not to take one any more."""
        if version not in self._residents:
            waking.cancel()
        self._freed.set()  # it is idle now, or about to be used

    async def _bring_up(self, version: Version, deadline: float | None, late: str) -> None:
        await version.ended()  # its workers of before have its place until then
        try:
            async with until(deadline, late):
                await self._take_place(version)
            started = time.monotonic()
            await self._start(version)
        except BaseException:
            await self._vacate(version)
            raise
        self.load_seconds = time.monotonic() - started
        self._not_before.pop(version, None)
        self._freed.set()  # if whoever wanted it has left, it is idle already

    async def _start(self, version: Version) -> None:
        if version.state == "loading":  # its memory was seen to before, or is by its worker
            await version.bring_up()
            return
        async with self.with_memory(version):
            await version.bring_up()

    async def _take_place(self, version: Version) -> None:
        if not version.spec.has_workers:
            return  # it takes no memory
        async with self._turn:
            while self._max_loaded is not None and len(self._residents) >= self._max_loaded:
                self._freed.clear()
                if (victim := self._least_recently_used()) is not None:
                    log.info("model.evicted", model=victim.model_id, by=version.model_id)
                    await self._vacate(victim)
                else:
                    await self._freed.wait()
            self._residents.add(version)

    async def _vacate(self, version: Version, drain_timeout: float = 0.0) -> None:
        """Its place is free once its workers have ended, also when nobody waits for that."""
        ending = version.take_down(drain_timeout)
        ending.add_done_callback(lambda _: self._give_place(version))
        await asyncio.shield(ending)

    def _give_place(self, version: Version) -> None:
        self._residents.discard(version)
        self._freed.set()

    def _least_recently_used(self) -> Version | None:
        idle = [each for each in self._residents if each.is_idle and not self._is_awaited(each)]
        # What a swap has replaced goes first, and what answers to a name last.
        return min(idle, key=lambda v: (_EVICTION_ORDER[v.state], v.last_used), default=None)

    def _is_awaited(self, version: Version) -> bool:
        """Whether somebody waits to lease it; two versions could else evict each other for ever."""
        room = self._rooms.get(version)
        return room is not None and room.num_waiting > 0


def _unlimited(_version: Version) -> AbstractAsyncContextManager[None]:
    return nullcontext()
