"""Every experiment of this server: which version a request gets, how it ended, and who won.

Puts the parts together: who gets what is in `assignment`, what counts in `samples`, what it says in
`reading`, and what is remembered in `store`. Knows the registry by what it needs of it.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from headrace.errors import (
    ConflictError,
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
)
from headrace.routing.experiments.archive import Archive
from headrace.routing.experiments.experiment import Conclusion, Experiment
from headrace.routing.experiments.known import KnownExperiments
from headrace.routing.experiments.looks import Looks
from headrace.routing.experiments.plan import Plan
from headrace.routing.experiments.recent import RecentRequest, RecentRequests
from headrace.routing.experiments.state import ExperimentState
from headrace.routing.observation import Observation

INTERVAL = 10.0  # seconds between two looks; a server that is killed forgets as many
FRESH_FOR = 1.0  # seconds that a look is shown to all who ask
IN_MEMORY = "sqlite://"

log = structlog.get_logger("headrace.routing")


class Versions(Protocol):
    """What experiments need of the registry."""

    def active(self, name: str) -> str | None:
        """The version that requests by name go to; None while there is none."""
        ...

    def refusal(self, model_id: str) -> HeadraceError | None:
        """Why this version would not answer now; ModelNotFoundError where there is none."""
        ...

    async def promote(self, model_id: str, *, who: str) -> None:
        """Make it the active version of its name; nothing where it is that already."""
        ...


class Experiments:
    """Of a name at most one runs. `occupied` tells what else shares out a name's requests.

    A version that is made active by hand ends it: then everybody gets that one.
    """

    def __init__(
        self,
        versions: Versions,
        *,
        database_url: str = IN_MEMORY,
        server: str = "",
        occupied: Callable[[str], str | None] = lambda _name: None,
        interval: float = INTERVAL,
        fresh_for: float = FRESH_FOR,
    ) -> None:
        self._versions = versions
        self._occupied = occupied
        self._known = KnownExperiments()
        self._recent = RecentRequests()
        self._archive = Archive(database_url, server)
        self._looks = Looks(
            self._known, self._archive, self._act, interval=interval, fresh_for=fresh_for
        )

    async def start(self) -> None:
        """Take up what was left; ConfigurationError when the database cannot be used."""
        experiments, requests = await self._archive.open()
        self._known.restore(experiments)
        self._recent.restore(requests, time.time())
        self._looks.start()

    async def close(self) -> None:
        """Store what was counted. Nothing is left behind."""
        await self._looks.close()
        await self._archive.close(self._known.running(), self._recent)

    # Requests

    def choose(self, name: str, user: str) -> str | None:
        """The version that a request by this name gets; None: the active one, as ever.

        `user` is the request's own id where nobody is named.
        """
        experiment = self._known.running_on(name)
        if experiment is None or experiment.is_overruled(self._versions.active(name)):
            return None
        model_id = experiment.variant_of(user)
        if self._versions.refusal(model_id) is None:
            return model_id
        experiment.divert(model_id, user)
        return None

    def observe(self, model_id: str, request_id: str, seen: Observation) -> None:
        """Count a request that `choose` sent to this version, at its end."""
        experiment = self._known.running_on(model_id.rpartition("@")[0])
        if experiment is not None and experiment.observe(model_id, seen):
            now = time.time()
            experiment_id = experiment.experiment_id
            self._recent.add(RecentRequest(request_id, experiment_id, model_id, seen.user, now))

    def feedback(self, request_id: str, score: float) -> None:
        """Count what a user thinks of an answer, from 0 to 1, once a request.

        RequestNotFoundError where no experiment that runs remembers it, FeedbackGivenError for a
        second score.
        """
        assert 0 <= score <= 1, score
        request = self._recent.take(request_id, score, time.time())
        experiment = self._known.find(request.experiment_id)
        experiment.add_score(request.model_id, request.user, score)

    # What there is

    def occupant(self, name: str) -> str | None:
        """What shares out this name's requests now, in words."""
        experiment = self._known.running_on(name)
        return f"experiment {experiment.experiment_id}" if experiment else None

    async def state(self, experiment_id: str) -> ExperimentState:
        """At most FRESH_FOR old."""
        return await self._shown(self._known.find(experiment_id))

    async def states(self) -> list[ExperimentState]:
        """The newest first."""
        return [await self._shown(each) for each in reversed(self._known.all())]

    # Changes

    async def create(self, plan: Plan) -> ExperimentState:
        """Begin to share out a name's requests.

        ModelNotFoundError for a version that is not there, ConflictError for one that does not
        answer, and where the name's requests are shared out already.
        """
        self._require_answers(plan)
        if (other := self._occupied(plan.name)) is not None:
            raise ConflictError(
                f"name: {other} shares out the requests of {plan.name} already.", param="name"
            )
        experiment = Experiment(
            f"exp-{os.urandom(8).hex()}",
            plan,
            time.time(),
            active=self._versions.active(plan.name),
        )
        self._known.begin(experiment)
        try:
            await self._archive.save(experiment)
        except BaseException:
            self._known.take_back(experiment)
            raise
        log.info("experiment.started", experiment_id=experiment.experiment_id, model=plan.name)
        return await self._state(experiment)

    async def conclude(
        self, experiment_id: str, winner: str | None, *, who: str
    ) -> ExperimentState:
        """End it, and make a version of it the active one: the one named, or else the winner.

        ConflictError where it has been concluded, and where no winner is named or found.
        """
        experiment = self._known.find(experiment_id)
        await self._conclude(experiment, _chosen(experiment, winner), who)
        return await self._state(experiment)

    # Parts

    async def _act(self, experiment: Experiment) -> None:
        """What nobody has to ask for: give way to a change by hand, promote a winner."""
        active = self._versions.active(experiment.plan.name)
        if experiment.is_ending or experiment.conclusion is not None:
            return
        if active is not None and experiment.is_overruled(active):
            with _ending(experiment):
                await self._end(experiment, active, "a change by hand")
        elif experiment.plan.promote_winner and experiment.found is not None:
            await self._promote(experiment, experiment.found.winner)

    async def _promote(self, experiment: Experiment, winner: str) -> None:
        """Or say what is in the way, until the next look."""
        try:
            if (doubt := experiment.doubt(winner)) is not None:
                raise ConflictError(doubt)
            await self._conclude(experiment, winner, f"experiment {experiment.experiment_id}")
        except HeadraceError as error:
            experiment.problem = error.message

    async def _conclude(self, experiment: Experiment, promoted: str, who: str) -> None:
        """Cut short in the middle it goes on as before, and may be concluded again."""
        with _ending(experiment):
            await self._versions.promote(promoted, who=who)
            await self._end(experiment, promoted, who)

    async def _end(self, experiment: Experiment, promoted: str, by: str) -> None:
        reading = await self._looks.look(experiment)
        experiment.conclude(Conclusion(promoted=promoted, by=by, at=time.time(), reading=reading))
        self._known.end(experiment)
        self._recent.forget(experiment.experiment_id)
        log.info(
            "experiment.concluded", experiment_id=experiment.experiment_id, promoted=promoted, by=by
        )
        await self._archive.note(experiment)

    async def _state(self, experiment: Experiment) -> ExperimentState:
        return experiment.state(await self._looks.look(experiment))

    async def _shown(self, experiment: Experiment) -> ExperimentState:
        return experiment.state(await self._looks.latest(experiment))

    def _require_answers(self, plan: Plan) -> None:
        for i, model_id in enumerate(plan.model_ids):
            refusal = self._versions.refusal(model_id)
            if refusal is None:
                continue
            kind = ModelNotFoundError if isinstance(refusal, ModelNotFoundError) else ConflictError
            field = f"variants.{i}.model_id"
            raise kind(f"{field}: {refusal.message}", param=field)


def _chosen(experiment: Experiment, winner: str | None) -> str:
    """The version to promote; what the caller names must be a part of the experiment."""
    if winner is not None:
        if winner not in experiment.plan.model_ids:
            variants = ", ".join(experiment.plan.model_ids)
            raise InvalidRequestError(
                f"winner: expected one of {variants}, got {winner[:80]!r}.", param="winner"
            )
        return winner
    if experiment.found is None:
        raise ConflictError(
            f"winner: {experiment.experiment_id} has found none yet; name the version that is to be"
            " active.",
            param="winner",
        )
    return experiment.found.winner


@contextmanager
def _ending(experiment: Experiment) -> Iterator[None]:
    """Have it be concluded once."""
    if experiment.conclusion is not None or experiment.is_ending:
        raise ConflictError(
            f"Experiment {experiment.experiment_id} has been concluded already, or is about to be."
        )
    experiment.is_ending = True
    try:
        yield
    finally:
        experiment.is_ending = False
