"""Looks at the experiments that run, now and then: stores what they counted, finds who won."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import structlog

from headrace.errors import HeadraceError
from headrace.routing.experiments.archive import Archive
from headrace.routing.experiments.experiment import Experiment, Found
from headrace.routing.experiments.known import KnownExperiments
from headrace.routing.experiments.latest import Latest
from headrace.routing.experiments.state import Reading

log = structlog.get_logger("headrace.routing")

Act = Callable[[Experiment], Awaitable[None]]
"""Do what follows from a look."""


class Looks:
    """Once an interval all of them; one that breaks holds up no other."""

    def __init__(
        self,
        known: KnownExperiments,
        archive: Archive,
        act: Act,
        *,
        interval: float,
        fresh_for: float,
    ) -> None:
        self._known = known
        self._archive = archive
        self._act = act
        self._interval = interval
        self._fresh_for = fresh_for
        self._latest = WeakKeyDictionary[Experiment, Latest]()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="experiments")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self, experiment: Experiment) -> Reading:
        """How it is now; the first winner that any look finds is kept."""
        if experiment.conclusion is not None:
            return experiment.conclusion.reading
        reading = await self._archive.look(experiment)
        if experiment.conclusion is not None:  # meanwhile
            return experiment.conclusion.reading
        if reading.better is not None and experiment.found is None:
            experiment.found = Found(reading.better, time.time())
            log.info(
                "experiment.winner", experiment_id=experiment.experiment_id, winner=reading.better
            )
            await self._archive.note(experiment)
        return reading

    async def latest(self, experiment: Experiment) -> Reading:
        """How it was a moment ago, for clients, who may ask as often as they like."""
        latest = self._latest.setdefault(experiment, Latest(self._fresh_for))
        reading = await latest.get(partial(self.look, experiment))
        return experiment.conclusion.reading if experiment.conclusion else reading

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._archive.pay()
            for experiment in self._known.running():
                with _surviving(experiment):
                    await self._visit(experiment)

    async def _visit(self, experiment: Experiment) -> None:
        await self.look(experiment)
        if experiment.conclusion is None:
            await self._archive.save_counts(experiment)
        await self._act(experiment)


@contextmanager
def _surviving(experiment: Experiment) -> Iterator[None]:
    """Whatever fails once is told, and tried again at the next look."""
    try:
        yield
    except HeadraceError as error:
        log.warning(
            "experiment.waits", experiment_id=experiment.experiment_id, reason=error.message
        )
    except Exception:
        log.exception("experiment.broke", experiment_id=experiment.experiment_id)
