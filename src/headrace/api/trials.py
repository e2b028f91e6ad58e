"""Rollouts and experiments of a server: made, started and ended together."""

from headrace.api.experiments.versions import ExperimentVersions
from headrace.api.rollouts.live import LiveRollouts
from headrace.registry.registry import IN_MEMORY, Registry
from headrace.routing.experiments.experiments import Experiments


class Trials:
    """Neither shares out the requests of a model that the other does."""

    def __init__(
        self, registry: Registry, *, database_url: str = IN_MEMORY, server: str = ""
    ) -> None:
        self.rollouts = LiveRollouts(
            registry,
            database_url=database_url,
            server=server,
            occupied=self._in_experiment,
        )
        self.experiments = Experiments(
            ExperimentVersions(registry, self.rollouts.versions),
            database_url=database_url,
            server=server,
            occupied=self.rollouts.rollouts.occupant,
        )

    def _in_experiment(self, name: str) -> str | None:
        return self.experiments.occupant(name)

    async def start(self) -> None:
        """After the registry has begun: they go on with its versions."""
        await self.rollouts.start()
        await self.experiments.start()

    async def close(self) -> None:
        """Before the registry's end, so that what it counts is written."""
        await self.experiments.close()
        await self.rollouts.close()
