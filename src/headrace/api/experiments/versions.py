"""The registry as experiments see it."""

from headrace.api.rollouts.versions import RegistryVersions
from headrace.errors import HeadraceError, ModelNotFoundError, NotReadyError
from headrace.registry.registry import Registry


class ExperimentVersions:
    """`versions` listens to the registry, so that a request costs no more than a look-up."""

    def __init__(self, registry: Registry, versions: RegistryVersions) -> None:
        self._registry = registry
        self._versions = versions

    def active(self, name: str) -> str | None:
        return self._versions.active(name)

    def refusal(self, model_id: str) -> HeadraceError | None:
        """Why this version would not answer now, or once a request has woken it."""
        condition = self._versions.condition(model_id)
        if condition.state == "answering":
            return None
        kind = ModelNotFoundError if condition.state == "gone" else NotReadyError
        return kind(f"{model_id} {condition.reason}.")

    async def promote(self, model_id: str, *, who: str) -> None:
        """Nothing where it is the active one already; UnsafeSwapError where it must not be."""
        if self._registry.status(model_id).state != "active":
            await self._registry.swap(model_id, who=who)
