"""Which version a request by name gets, and who is told how it ended. Knows no HTTP."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from headrace.api.exchange import Exchange, Mirror
from headrace.api.rollouts.live import LiveRollouts
from headrace.api.rollouts.observing import observing
from headrace.routing.experiments.experiments import Experiments
from headrace.routing.observation import Observation


@dataclass(frozen=True, slots=True)
class Chosen:
    """`model` is what to acquire; `told` hears which version answered, and how it ended.

    `begin` comes before it, `told` after it in any case, with None where its end says nothing.
    `mirror` wants the request and its whole answer, to have a candidate asked the same.
    """

    model: str
    told: Callable[[str, Observation | None], None] | None = None
    begin: Callable[[], None] = lambda: None
    mirror: Mirror | None = None

    def observed(self, exchange: Exchange, user: str | None) -> AbstractContextManager[None]:
        """Around all that the version does for the request."""
        exchange.mirror = self.mirror
        told = self.told
        if told is None:
            return nullcontext()
        self.begin()
        return observing(exchange, user, lambda seen: told(exchange.model_id or self.model, seen))


class Traffic:
    """At most one rollout or experiment has a say in a name's requests."""

    def __init__(self, live: LiveRollouts, experiments: Experiments) -> None:
        self._live = live
        self._rollouts = live.rollouts
        self._experiments = experiments

    def choose(self, name: str, user: str | None, request_id: str) -> Chosen:
        choice = self._rollouts.choose(name, user, request_id)
        if choice is not None:
            told = partial(self._rollouts.end, choice)
            begin = partial(self._rollouts.begin, choice)
            mirror = None if choice.shadow is None else partial(self._live.mirror, choice)
            return Chosen(choice.model, told, begin, mirror)
        model_id = self._experiments.choose(name, user or request_id)
        if model_id is not None:
            return Chosen(model_id, partial(self._observe, request_id))
        return Chosen(name)

    def _observe(self, request_id: str, model_id: str, seen: Observation | None) -> None:
        if seen is not None and not seen.has_left:
            self._experiments.observe(model_id, request_id, seen)
