"""The experiments that there are, by id, and those that run, by name."""

from collections.abc import Iterable

from headrace.errors import ConflictError, ExperimentNotFoundError
from headrace.routing.experiments.experiment import Experiment

MAX_CONCLUDED = 100  # the newest; older ones are forgotten


class KnownExperiments:
    """In the order in which they began. Of a name at most one runs."""

    def __init__(self) -> None:
        self._by_id: dict[str, Experiment] = {}
        self._running: dict[str, Experiment] = {}

    def restore(self, experiments: Iterable[Experiment]) -> None:
        for experiment in experiments:
            self._by_id[experiment.experiment_id] = experiment
            if experiment.conclusion is None:
                self._running[experiment.plan.name] = experiment

    def find(self, experiment_id: str) -> Experiment:
        experiment = self._by_id.get(experiment_id)
        if experiment is None:
            raise ExperimentNotFoundError(f"There is no experiment {experiment_id[:80]!r}.")
        return experiment

    def running_on(self, name: str) -> Experiment | None:
        return self._running.get(name)

    def running(self) -> list[Experiment]:
        return list(self._running.values())

    def all(self) -> list[Experiment]:
        return list(self._by_id.values())

    def begin(self, experiment: Experiment) -> None:
        """ConflictError where another one runs under that name."""
        name = experiment.plan.name
        if (other := self._running.get(name)) is not None:
            raise ConflictError(
                f"name: experiment {other.experiment_id} shares out the requests of {name} already;"
                " conclude it first.",
                param="name",
            )
        self._by_id[experiment.experiment_id] = self._running[name] = experiment

    def take_back(self, experiment: Experiment) -> None:
        """One that never began."""
        del self._running[experiment.plan.name], self._by_id[experiment.experiment_id]

    def end(self, experiment: Experiment) -> None:
        """One that has been concluded."""
        assert experiment.conclusion is not None, "it goes on"
        del self._running[experiment.plan.name]
        over = [each for each in self._by_id.values() if each.conclusion is not None]
        for old in sorted(over, key=_ended_at)[:-MAX_CONCLUDED]:
            del self._by_id[old.experiment_id]


def _ended_at(experiment: Experiment) -> float:
    assert experiment.conclusion is not None
    return experiment.conclusion.at
