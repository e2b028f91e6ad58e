"""Loads versions for the first time, in the background, and says how that went."""

import asyncio

import structlog

from headrace.errors import HeadraceError
from headrace.registry.changes.memory import MemoryBook
from headrace.registry.changes.pointer import Pointer
from headrace.registry.journal import Journal
from headrace.registry.residency import Residency
from headrace.registry.served import ServedModel
from headrace.registry.tasks import Tasks
from headrace.registry.version import Version

RETRY_DELAY = 1.0  # seconds, while the database refuses
SERVER = "server"  # who did what nobody asked for

log = structlog.get_logger("headrace.registry")


class FirstLoads:
    """The first version of a model that gets ready becomes its active one."""

    def __init__(
        self,
        *,
        journal: Journal,
        residency: Residency,
        memory: MemoryBook,
        pointer: Pointer,
        tasks: Tasks,
    ) -> None:
        self._journal = journal
        self._residency = residency
        self._memory = memory
        self._pointer = pointer
        self._tasks = tasks
        self._running: dict[Version, tuple[asyncio.Task[None], int | None]] = {}

    def begin(
        self, model: ServedModel, version: Version, change_id: int | None
    ) -> asyncio.Task[None]:
        """Start to load; the task ends well, `version.failure` says whether the load did."""
        work = self._load(model, version, change_id)
        task = self._tasks.start(work, f"load-{version.model_id}")
        self._running[version] = task, change_id
        task.add_done_callback(lambda _: self._running.pop(version, None))
        return task

    async def give_up(self, version: Version) -> None:
        """Stop loading it, if it is being loaded; its workers have ended then."""
        task, change_id = self._running.get(version, (None, None))
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._memory.settle(version)
            if task.cancelled():
                await self._journal.end(change_id, "undone", "unloaded before it was ready")

    async def bring_up(
        self, version: Version, *, note: bool = True, deadline: float | None = None
    ) -> None:
        """Load it now, and make it ready; it is failed, and noted so, when this raises.

        Without `note` its being ready is left to whoever writes down what becomes of it.
        """
        try:
            await self._bring_up(version, deadline)
        except HeadraceError:
            await self._journal.note(version, "failed")
            raise
        if note:
            await self._journal.note(version, "ready")

    async def _load(self, model: ServedModel, version: Version, change_id: int | None) -> None:
        failure = None
        try:
            await self._bring_up(version)
        except HeadraceError as error:
            failure = error
        while not await self._is_concluded(  # noqa: ASYNC110 - nothing tells that it can be written
            model, version, change_id, failure
        ):
            await asyncio.sleep(RETRY_DELAY)
        await self._fall_back(model)

    async def _is_concluded(
        self,
        model: ServedModel,
        version: Version,
        change_id: int | None,
        failure: HeadraceError | None,
    ) -> bool:
        """False when it should be active and that cannot be written down at the moment."""
        async with model.turn:  # a change that unloads it may have come before
            try:
                await self._conclude(model, version, change_id, failure)
            except HeadraceError as error:
                log.warning("model.not_active", model=version.model_id, reason=error.message)
                return False
        return True

    async def _bring_up(self, version: Version, deadline: float | None = None) -> None:
        try:
            await self._residency.bring_up(version, deadline)
        except HeadraceError as error:
            _fail(version, error)
            raise
        except Exception as error:
            log.exception("model.load_broke", model=version.model_id)
            failure = HeadraceError(f"{type(error).__name__}: {error}")
            _fail(version, failure)
            raise failure from error
        finally:
            self._memory.settle(version)

    async def _conclude(
        self,
        model: ServedModel,
        version: Version,
        change_id: int | None,
        failure: HeadraceError | None,
    ) -> None:
        if version.state == "unloading":
            await self._journal.end(change_id, "undone", "unloaded before it was ready")
        elif failure is None:
            await self._journal.note(version, "ready")
            await self._take_over(model, version, change_id)
        else:
            await self._journal.note(version, "failed")
            await self._journal.end(change_id, "failed", failure.message)

    async def _take_over(self, model: ServedModel, version: Version, change_id: int | None) -> None:
        """Become active where nothing is."""
        if model.active is None and change_id is not None:
            await self._pointer.activate(model, version, change_id)
            return
        if model.active is version:
            model.point_to(version)  # as it was when the server ended
        elif model.active is None or model.active.state == "failed":
            await self._pointer.move(model, version, "fallback", SERVER)
        await self._journal.end(change_id, "done")
        if model.previous is version:
            self._pointer.retire(model, version)  # a swap came before its load had ended

    async def _fall_back(self, model: ServedModel) -> None:
        """Let another version answer in place of an active one that could not be loaded."""
        for version in _substitutes(model):
            try:
                with version.hold():
                    if version.refusal is not None:
                        await self._residency.bring_up(version)
                    await self._put_in_place(model, version)
            except HeadraceError as error:
                log.warning("model.no_fallback", model=version.model_id, reason=error.message)
            else:
                return

    async def _put_in_place(self, model: ServedModel, version: Version) -> None:
        async with model.turn:
            if _lacks_active(model):  # still, though loading the other one took a while
                await self._pointer.move(model, version, "fallback", SERVER)
                log.warning("model.fell_back", model=version.model_id)


def _lacks_active(model: ServedModel) -> bool:
    return model.active is not None and model.active.state == "failed"


def _substitutes(model: ServedModel) -> list[Version]:
    """The latest that is ready; else what was active before. One that loads sees to itself."""
    states = ("loading", "health_check")
    if not _lacks_active(model) or any(
        version.state in states for version in model.versions.values()
    ):
        return []
    latest_first = sorted(model.versions.values(), key=lambda each: -each.spec.version)
    ready = [version for version in latest_first if version.state == "ready"]
    replaced = [version for version in latest_first if version.state == "deprecated"]
    return [*ready, *sorted(replaced, key=lambda version: version is not model.previous)]


def _fail(version: Version, error: HeadraceError) -> None:
    version.fail(error)
    # Whoever waits for a declared one is told by the error itself.
    write = log.info if version.is_declared else log.warning
    write("model.failed", model=version.model_id, reason=error.message)
