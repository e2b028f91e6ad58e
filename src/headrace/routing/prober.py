"""Asks upstreams how they are, each when it is due. Judges nothing."""

import asyncio
import time
from collections.abc import Callable

import structlog

from headrace.errors import HeadraceError
from headrace.routing.health.members import Members
from headrace.routing.places import UpstreamPlace

log = structlog.get_logger("headrace.routing")


class Prober:
    """A task for each upstream: one that takes long to answer holds up no other."""

    def __init__(self, members: Members, on_change: Callable[[], None]) -> None:
        self._members = members
        self._on_change = on_change
        self._tasks: list[asyncio.Task[None]] = []
        self.passed = asyncio.Event()
        """Set once any upstream has passed a probe."""

    def start(self, place: UpstreamPlace) -> None:
        work = self._probe_for_ever(place)
        self._tasks.append(asyncio.create_task(work, name=f"probe-{place.endpoint.name}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _probe_for_ever(self, place: UpstreamPlace) -> None:
        has_learned = False
        while True:
            wait = self._members.next_probe_at(place.endpoint) - time.monotonic()
            await asyncio.sleep(max(0.0, wait))
            was_taking = place.endpoint in self._members.taking(time.monotonic())
            # What it serves may be another thing after it was away.
            complaint = await self._complaint(place, learn=not (has_learned and was_taking))
            has_learned = has_learned or complaint is None
            self._note(place, complaint, was_taking=was_taking)
            self._tell(place)

    async def _complaint(self, place: UpstreamPlace, *, learn: bool) -> str | None:
        """What is wrong with it, if anything is."""
        try:
            await place.upstream.probe()
            if learn:
                await place.upstream.learn()
        except HeadraceError as error:
            return error.message
        except Exception as error:
            log.exception("probe.broke", endpoint=place.endpoint.name)
            return f"{type(error).__name__}: {error}"
        return None

    def _note(self, place: UpstreamPlace, complaint: str | None, *, was_taking: bool) -> None:
        endpoint, now = place.endpoint, time.monotonic()
        self._members.record_probe(endpoint, passed=complaint is None, reason=complaint, now=now)
        is_taking = endpoint in self._members.taking(now)
        if is_taking != was_taking:
            event = "endpoint.returned" if is_taking else "endpoint.removed"
            log.warning(event, model=endpoint.model_id, endpoint=endpoint.name, reason=complaint)
        if complaint is None:
            self.passed.set()

    def _tell(self, place: UpstreamPlace) -> None:
        try:
            self._on_change()
        except Exception:  # whoever listens is not to end the probes
            log.exception("probe.listener_broke", endpoint=place.endpoint.name)
