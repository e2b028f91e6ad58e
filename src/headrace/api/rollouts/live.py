"""The rollouts of a running server: looks at them again and again, writes down and swaps."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from headrace.api.rollouts.versions import RegistryVersions
from headrace.errors import HeadraceError, InvalidRequestError
from headrace.generation import GenerationRequest
from headrace.registry.changes.safety import UnsafeSwapError
from headrace.registry.registry import IN_MEMORY, Registry
from headrace.registry.tasks import Tasks
from headrace.routing.rollouts.choice import Choice
from headrace.routing.rollouts.journal import RolloutJournal
from headrace.routing.rollouts.mirror import Mirror
from headrace.routing.rollouts.plan import Plan
from headrace.routing.rollouts.rollout import INTERVAL, Rollout
from headrace.routing.rollouts.rollouts import Rollouts
from headrace.routing.rollouts.shadow import Answer

UNWELL = {"exists_and_ready", "health_score"}  # the checks of a swap that are the candidate's own
TICK = 0.2  # of the interval between looks: a look is late by no more

log = structlog.get_logger("headrace.rollouts")


class LiveRollouts:
    """Owns the task that looks. A version that changes is looked at once it does."""

    def __init__(
        self,
        registry: Registry,
        *,
        database_url: str = IN_MEMORY,
        server: str = "",
        occupied: Callable[[str], str | None] = lambda _name: None,
        interval: float = INTERVAL,
    ) -> None:
        self._registry = registry
        self._tick = interval * TICK
        self._journal = RolloutJournal(database_url, server)
        self._mirror = Mirror(registry.acquire)
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        self.versions = RegistryVersions(registry)
        self.rollouts = Rollouts(self.versions, occupied=occupied, interval=interval)
        registry.listen(lambda _status: self._changed.set())

    async def start(self) -> None:
        """Take up what was left, once the registry has begun.

        ConfigurationError when the database cannot be used.
        """
        self.versions.read()
        self.rollouts.restore(await self._journal.open(), time.time())
        self._tasks.start(self._look_again_and_again(), "rollouts")

    async def close(self) -> None:
        """Write what there is. Nothing is left behind."""
        await self._tasks.close()
        await self._mirror.close()
        await self._journal.note(self.rollouts)
        await self._journal.close()

    # What a person does

    async def begin(self, plan: Plan) -> Rollout:
        """One that cannot be written down does not begin."""
        self._refuse_shadow_of_upstreams(plan)
        rollout = self.rollouts.start(plan, time.time())
        try:
            await self._journal.save(rollout)
        except HeadraceError:
            self.rollouts.withdraw(rollout)
            raise
        _tell(rollout)
        return rollout

    def _refuse_shadow_of_upstreams(self, plan: Plan) -> None:
        served = [each for each in self._registry.statuses() if each.name == plan.name]
        if plan.shadow_percent and any(not each.replicas for each in served):
            raise InvalidRequestError(
                "shadow_percent: requests to upstreams are passed on as they came, not mirrored",
                param="shadow_percent",
            )

    async def promote(self, rollout: Rollout, *, who: str, deadline: float | None = None) -> None:
        """Swap now; where that is refused, all stays as it was."""
        rollout.begin_promotion()
        await self._tasks.to_its_end(self._promote_for(rollout, who, deadline))

    async def pause(self, rollout: Rollout, *, who: str) -> None:
        rollout.pause(time.time(), f"by {who}")
        await self._written(rollout)

    async def resume(self, rollout: Rollout, *, who: str) -> None:
        rollout.resume(time.time(), f"by {who}")
        await self._written(rollout)

    async def abort(self, rollout: Rollout, *, who: str) -> None:
        rollout.abort(time.time(), f"by {who}")
        await self._written(rollout)

    # Requests

    def mirror(self, choice: Choice, request: GenerationRequest, answer: Answer) -> None:
        """Ask the candidate the same, if the choice says so; costs its caller nothing."""
        shadow = self.rollouts.shadow(choice.rollout_id)
        if choice.shadow is not None and shadow is not None:
            self._mirror.offer(shadow, choice.shadow, request, answer)

    # Looks

    async def _look_again_and_again(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._look()
            except Exception:  # a fault in one look must not end all looks
                log.exception("rollouts.fault")

    async def _look(self) -> None:
        for rollout in self.rollouts.evaluate(time.time()):
            _tell(rollout)
            if rollout.is_promoting:
                self._tasks.start(self._promote(rollout))
        await self._journal.note(self.rollouts)

    async def _promote(self, rollout: Rollout) -> None:
        """Once every stage is passed."""
        try:
            await self._registry.swap(rollout.plan.candidate, who=f"rollout {rollout.id}")
        except UnsafeSwapError as error:
            self._judge_refusal(rollout, error)
        except HeadraceError as error:
            rollout.not_promoted(time.time(), error.message)
        else:
            rollout.promoted(time.time(), "every stage is passed")
        await self._written(rollout)

    @staticmethod
    def _judge_refusal(rollout: Rollout, error: UnsafeSwapError) -> None:
        """A candidate that is not well is sent back; all else may pass."""
        failed = {check.name for check in error.report.checks if not check.passed}
        if failed & UNWELL:
            rollout.candidate_failed(time.time(), error.message)
        else:
            rollout.not_promoted(time.time(), error.message)

    async def _promote_for(self, rollout: Rollout, who: str, deadline: float | None) -> None:
        try:
            await self._registry.swap(rollout.plan.candidate, who=who, deadline=deadline)
        except BaseException:
            rollout.leave_promotion()
            raise
        rollout.promoted(time.time(), f"by {who}")
        await self._written(rollout)

    async def _written(self, rollout: Rollout) -> None:
        _tell(rollout)
        await self._journal.note([rollout])


def _tell(rollout: Rollout) -> None:
    last = rollout.decisions[-1]
    log.info(
        "rollout.decided",
        kind=last.kind,
        rollout=rollout.id,
        candidate=rollout.plan.candidate,
        stage_percent=last.stage_percent,
        reason=last.reason,
    )
