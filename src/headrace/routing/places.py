"""Where requests of one version can go, and waiting until somebody takes them. Sends nothing."""

import asyncio
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

from headrace.endpoints import EndpointStatus, StrategyName, Worker
from headrace.errors import DeadlineError, HeadraceError, NoEndpointError, QueueFullError, again
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.health.members import Members
from headrace.routing.outcome import Retry, Verdict, judge_error
from headrace.routing.policy import RoutingPolicy
from headrace.routing.upstream.upstream import Upstream

NOBODY: frozenset[Endpoint] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class WorkerPlace:
    """A worker's place: it stays when its process is replaced."""

    endpoint: Endpoint
    worker: Worker

    @property
    def is_awaited(self) -> bool:
        """Whether it takes no requests and is about to again."""
        return not self.worker.is_ready and self.worker.refusal is None


@dataclass(frozen=True, slots=True, eq=False)
class UpstreamPlace:
    """Another server's."""

    endpoint: Endpoint
    upstream: Upstream


Place = WorkerPlace | UpstreamPlace


class Places:
    """Asks the members who gets a request; lets a bounded number wait for a worker's return."""

    def __init__(
        self, model_id: str, strategy: StrategyName, policy: RoutingPolicy, random: Random
    ) -> None:
        self._model_id = model_id
        self._policy = policy
        self.members = Members(strategy, policy, random)
        self._places: dict[Endpoint, Place] = {}
        self._workers: dict[Worker, WorkerPlace] = {}
        self._awaited: set[Endpoint] = set()
        self._changed: asyncio.Event = asyncio.Event()
        self._num_waiting = 0
        self._tokens_waiting = 0
        self.trial = asyncio.Lock()
        """Held by a request that may be what kills workers, on its last try."""

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    @property
    def workers(self) -> Collection[WorkerPlace]:
        return self._workers.values()

    def add_worker(self, worker: Worker) -> None:
        endpoint = Endpoint(worker.name, kind="worker", model_id=self._model_id)
        self._workers[worker] = place = WorkerPlace(endpoint, worker)
        self._places[endpoint] = place
        self.members.add(endpoint, time.monotonic(), is_probed=False)
        self._follow(place)

    def add_upstream(self, upstream: Upstream) -> UpstreamPlace:
        config = upstream.config
        endpoint = Endpoint(
            config.label, kind="upstream", weight=config.weight, model_id=self._model_id
        )
        self._places[endpoint] = place = UpstreamPlace(endpoint, upstream)
        self.members.add(endpoint, time.monotonic(), is_probed=True)
        return place

    def worker_changed(self, worker: Worker) -> None:
        if (place := self._workers.get(worker)) is not None:
            self._follow(place)

    @property
    def refusal(self) -> HeadraceError | None:
        """Why nobody takes a request, now or after a short wait."""
        if self._awaited or self.members.can_take(time.monotonic()):
            return None
        refusals = (place.worker.refusal for place in self.workers)
        of_worker = next(filter(None, refusals), None)
        if of_worker is not None:
            return again(of_worker)
        return NoEndpointError(
            f"no endpoint of {self._model_id} takes requests now",
            retry_after=self.members.retry_after(time.monotonic()),
        )

    def refused(self) -> HeadraceError:
        """Why nobody took a request."""
        return self.refusal or NoEndpointError(
            f"no endpoint of {self._model_id} can go on with this answer",
            retry_after=self._policy.min_retry_after,
        )

    def awaits(self, unable: Collection[Endpoint]) -> bool:
        """Whether a worker that is able to is about to return, and nobody else could take it."""
        now = time.monotonic()
        taking = any(each not in unable for each in self.members.taking(now))
        return not taking and bool(self._awaited.difference(unable))

    async def take(
        self,
        key: RequestKey,
        deadline: float | None,
        *,
        tried: Collection[Endpoint] = NOBODY,
        unable: Collection[Endpoint] = NOBODY,
    ) -> Place | None:
        """The place for a request, one that was tried only if there is no other.

        None when nobody takes it who is able to, and no such worker is about to.
        """
        while True:
            now = time.monotonic()
            endpoint = self.members.choose(key, now, {*tried, *unable} if tried else unable)
            if endpoint is None and tried:
                endpoint = self.members.choose(key, now, unable)
            if endpoint is not None:
                return self._places[endpoint]
            if not self._awaited.difference(unable):
                return None
            await self._wait(key, deadline)

    def judge(self, place: Place, error: BaseException, *, is_hanging: bool = False) -> Verdict:
        """What an attempt there that ended so says, and whether another may follow."""
        if isinstance(place, UpstreamPlace):
            return judge_error(error, is_hanging=is_hanging)
        verdict = judge_error(error)
        if verdict.outcome != "failure":
            return verdict
        # What breaks in a worker breaks there again. And a worker on its own is not left alone for
        # its faults: nobody else would answer, and one client's requests may be what breaks it.
        retry: Retry = "never" if verdict.retry == "never" else "elsewhere"
        return Verdict("failure" if len(self._places) > 1 else "neutral", retry)

    def statuses(self) -> list[EndpointStatus]:
        return self.members.statuses(time.monotonic())

    def call_all(self) -> None:
        """Have everyone who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _follow(self, place: WorkerPlace) -> None:
        """Have requests go to a worker while it is ready, and only then."""
        endpoint, now = place.endpoint, time.monotonic()
        was = self.members.is_draining(endpoint), endpoint in self._awaited
        if place.worker.is_ready and was[0]:
            self.members.renew(endpoint, now)  # what its predecessor did is not its fault
        self.members.set_draining(endpoint, not place.worker.is_ready, now)
        (self._awaited.add if place.is_awaited else self._awaited.discard)(endpoint)
        if was != (self.members.is_draining(endpoint), endpoint in self._awaited):
            self.call_all()

    async def _wait(self, key: RequestKey, deadline: float | None) -> None:
        self._refuse_too_many()
        self._num_waiting += 1
        self._tokens_waiting += key.num_tokens
        # Nobody calls when an upstream has come back, or a breaker lets requests through again.
        now = time.monotonic()
        delay = self.members.retry_after(now)
        if deadline is not None:
            delay = max(0.0, min(delay, deadline - now))
        try:
            async with asyncio.timeout(delay):
                await self._changed.wait()
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineError("the request's deadline has passed") from None
        finally:
            self._num_waiting -= 1
            self._tokens_waiting -= key.num_tokens

    def _refuse_too_many(self) -> None:
        policy = self._policy
        max_waiting = sum(place.worker.max_in_flight for place in self.workers)
        if self._num_waiting >= max_waiting or self._tokens_waiting >= policy.max_waiting_tokens:
            raise QueueFullError(
                f"{self._num_waiting} requests wait for a worker of {self._model_id} already",
                retry_after=policy.min_retry_after,
            )
