"""The store and the looks as the event loop sees them: in a thread of their own, in order.

Both take milliseconds, and what they need takes long to import.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.errors import DrainingError, HeadraceError
from headrace.routing.experiments.experiment import Experiment
from headrace.routing.experiments.plan import Plan
from headrace.routing.experiments.recent import RecentRequest
from headrace.routing.experiments.samples import Samples
from headrace.routing.experiments.state import Reading

if TYPE_CHECKING:
    from headrace.routing.experiments.store import ExperimentStore

T = TypeVar("T")

log = structlog.get_logger("headrace.routing")


class Archive:
    """What has happened already is written as soon as that can be; `save` raises if it cannot."""

    def __init__(self, database_url: str, server: str) -> None:
        self._database_url = database_url
        self._server = server
        self._thread = ThreadPoolExecutor(1, "headrace-experiments")
        self._store: ExperimentStore | None = None
        self._owed: dict[str, Experiment] = {}

    async def open(self) -> tuple[list[Experiment], list[RecentRequest]]:
        """What there was when the server ended. ConfigurationError when that cannot be had."""
        return await self._in_thread(self._open)

    async def look(self, experiment: Experiment) -> Reading:
        """At an experiment that runs."""
        plan, samples = experiment.plan, list(experiment.copies().values())
        return await self._do(lambda _store: _read(plan, samples))

    async def save(self, experiment: Experiment) -> None:
        await self._do(lambda store: store.save(experiment))

    async def note(self, experiment: Experiment) -> None:
        """Save it now, or with what is noted later."""
        self._owed[experiment.experiment_id] = experiment
        await self.pay()

    async def pay(self) -> None:
        """Save what could not be saved."""
        while self._owed:
            experiment_id, experiment = self._owed.popitem()
            if not await self._try(partial(_save, experiment)):
                self._owed[experiment_id] = experiment
                return

    async def save_counts(self, experiment: Experiment) -> bool:
        """Whether it could be done; counts go on either way."""
        experiment_id, counts = experiment.experiment_id, experiment.copies()
        return await self._try(lambda store: store.save_counts(experiment_id, counts))

    async def close(self, running: Iterable[Experiment], requests: Iterable[RecentRequest]) -> None:
        """Write what there is. May be called again."""
        if self._store is not None:
            await self.pay()
            for experiment in running:
                await self.save_counts(experiment)
            remembered = list(requests)
            await self._try(lambda store: store.save_requests(remembered))
            store, self._store = self._store, None
            await self._in_thread(store.close)
        self._thread.shutdown()

    def _open(self) -> tuple[list[Experiment], list[RecentRequest]]:
        from headrace.routing.experiments.store import ExperimentStore  # noqa: PLC0415 - see above

        self._store = store = ExperimentStore(self._database_url, self._server)
        return store.read(), store.take_requests()

    async def _try(self, work: Callable[["ExperimentStore"], object]) -> bool:
        try:
            await self._do(work)
        except HeadraceError as error:
            log.warning("experiments.unwritable", reason=error.message)
            return False
        return True

    async def _do(self, work: Callable[["ExperimentStore"], T]) -> T:
        if (store := self._store) is None:  # requests may come until the very end
            raise DrainingError("the server is shutting down", retry_after=1.0)
        return await self._in_thread(lambda: work(store))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _save(experiment: Experiment, store: "ExperimentStore") -> None:
    store.save(experiment)


def _read(plan: Plan, samples: list[Samples]) -> Reading:
    from headrace.routing.experiments.reading import read  # noqa: PLC0415 - scipy takes 0.6 s

    return read(plan, samples)
