"""The endpoints of one version as one model: whoever asks it asks the best of them.

Knows no version and no state of one; is told when a worker changes, and asks upstreams itself.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Literal, TypeVar

import msgspec

from headrace.endpoints import (
    EndpointStatus,
    Migration,
    Relayed,
    RelayRequest,
    RoutingConfig,
    RoutingCounts,
    UpstreamConfig,
    Worker,
)
from headrace.errors import HeadraceError, NotReadyError, WorkerDiedError
from headrace.generation import GenerationRequest, LanguageModel, ModelInfo, Prompt
from headrace.routing.attempts.budget import RetryBudget
from headrace.routing.attempts.events import RoutingEvents
from headrace.routing.attempts.relaying import relay
from headrace.routing.attempts.resumable import MAX_TRIES_WITHOUT_PROGRESS
from headrace.routing.attempts.routed import RoutedGeneration
from headrace.routing.attempts.tries import Retrying, Tries
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.keys import key_of, key_of_relay
from headrace.routing.outcome import sentence
from headrace.routing.places import NOBODY, Place, Places, WorkerPlace
from headrace.routing.policy import RoutingPolicy
from headrace.routing.prober import Prober
from headrace.routing.upstream.upstream import Upstream

T = TypeVar("T")

LOOKS_AT_PROMPTS = frozenset({"prefix_affinity"})


class VersionRouter:
    """Made and closed in one event loop. `api_key` gives the key that a config names."""

    def __init__(
        self,
        model_id: str,
        config: RoutingConfig,
        workers: Sequence[Worker],
        upstreams: Sequence[UpstreamConfig],
        on_change: Callable[[], None] = lambda: None,
        *,
        api_key: Callable[[UpstreamConfig], str | None] = lambda _: None,
        policy: RoutingPolicy | None = None,
    ) -> None:
        self._model_id = model_id
        self._config = config
        policy, random = policy or _policy(config), Random()
        self._places = places = Places(model_id, config.strategy, policy, random)
        self._events = RoutingEvents(model_id)
        self._shared = Retrying(places, RetryBudget(policy), policy, random, self._events)
        self._prober = Prober(places.members, on_change)
        self._with_prompt = config.strategy in LOOKS_AT_PROMPTS
        self._info: tuple[ModelInfo, ModelInfo] | None = None
        for worker in workers:
            places.add_worker(worker)
        self._upstreams = [places.add_upstream(Upstream(each, api_key(each))) for each in upstreams]

    # From start to end

    async def start(self) -> None:
        """Begin to probe the upstreams; without workers, wait until one of them answers."""
        for place in self._upstreams:
            self._prober.start(place)
        if not self._places.workers:
            await self._prober.passed.wait()

    async def close(self) -> None:
        await self._prober.close()
        for place in self._upstreams:
            await place.upstream.close()
        self._places.call_all()

    def worker_changed(self, worker: Worker) -> None:
        self._places.worker_changed(worker)

    # As it is now

    @property
    def info(self) -> ModelInfo:
        """That of the first endpoint that has told; all of them serve the same model."""
        told = _told_by(self._places)
        if self._info is None or self._info[0] is not told:
            self._info = told, msgspec.structs.replace(told, model_id=self._model_id)
        return self._info[1]

    @property
    def refusal(self) -> HeadraceError | None:
        return self._places.refusal

    @property
    def is_answering(self) -> bool:
        return self._places.members.can_take(time.monotonic())

    @property
    def migration(self) -> Migration:
        return self._config.migration

    @property
    def relays(self) -> bool:
        return not self._places.workers

    def statuses(self) -> list[EndpointStatus]:
        return self._places.statuses()

    @property
    def counts(self) -> RoutingCounts:
        return self._events.counts

    # Requests

    def generate(self, request: GenerationRequest) -> RoutedGeneration:
        """Chunks as they come; closing it aborts the request, wherever it is."""
        tries = self._tries(key_of(request, with_prompt=self._with_prompt), request.deadline)
        return RoutedGeneration(self._shared, tries, request, self._config.migration)

    def go_on(self, request: GenerationRequest) -> RoutedGeneration:
        by: Literal["tokens", "text"] = "tokens" if request.answered_text is None else "text"
        self._events.moved(request.request_id, by, "its relay broke off")
        return self.generate(request)

    async def relay(self, request: RelayRequest) -> Relayed:
        return await relay(
            request, self._shared, self._tries(key_of_relay(request), request.deadline)
        )

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        return await self._ask(
            lambda model: model.tokenize(prompt, add_special_tokens=add_special_tokens)
        )

    async def detokenize(self, token_ids: list[int]) -> str:
        return await self._ask(lambda model: model.detokenize(token_ids))

    def _tries(self, key: RequestKey, deadline: float | None) -> Tries:
        return Tries(self._shared, key, deadline)

    async def _ask(self, question: Callable[[LanguageModel], Awaitable[T]]) -> T:
        """Any endpoint, and another one when it fails."""
        tries, num_deaths = self._tries(RequestKey(), None), 0
        place = await tries.first()
        while True:
            try:
                return await self._ask_at(place, question)
            except HeadraceError as error:
                if isinstance(error, WorkerDiedError) and isinstance(place, WorkerPlace):
                    num_deaths += 1
                    may_try = num_deaths < MAX_TRIES_WITHOUT_PROGRESS
                    following = await tries.at_once(NOBODY) if may_try else None
                else:
                    following = await tries.after(place, self._places.judge(place, error))
                if following is None:
                    raise
                place = following

    async def _ask_at(self, place: Place, question: Callable[[LanguageModel], Awaitable[T]]) -> T:
        sent = self._places.members.begin(place.endpoint, 0, time.monotonic())
        try:
            answer = await question(_model(place))
        except BaseException as error:
            sent.end(self._places.judge(place, error).outcome, time.monotonic(), sentence(error))
            raise
        sent.end("success", time.monotonic())
        return answer


def _model(place: Place) -> LanguageModel:
    return place.worker.model if isinstance(place, WorkerPlace) else place.upstream


def _told_by(places: Places) -> ModelInfo:
    not_ready = NotReadyError("no endpoint has told yet what it serves", retry_after=1.0)
    for place in places:
        try:
            return _model(place).info
        except NotReadyError as error:
            not_ready = error
    raise not_ready


def _policy(config: RoutingConfig) -> RoutingPolicy:
    often = min(RoutingPolicy().suspect_probe_interval, config.probe_interval)
    return RoutingPolicy(probe_interval=config.probe_interval, suspect_probe_interval=often)
