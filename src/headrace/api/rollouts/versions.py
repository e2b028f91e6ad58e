"""The registry as rollouts see it: what it last told of each version, at no cost to a request."""

from headrace.registry.lifecycle import LOADING
from headrace.registry.registry import Registry
from headrace.registry.status import ModelStatus
from headrace.routing.rollouts.rollouts import Condition

_ANSWERING = Condition("answering")
_GONE = Condition("gone", "is not loaded")
# It was put to sleep for lack of use or of room, and a request wakes it.
_ASLEEP = {("ready", "idle"), ("deprecated", "cold")}


class RegistryVersions:
    """Listens; whoever begins the registry afterwards has it `read`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._active: dict[str, str] = {}
        self._conditions: dict[str, Condition] = {}
        registry.listen(self.tell)
        self.read()

    def read(self) -> None:
        """Learn of every version: the registry tells of changes, and begins without telling."""
        for status in self._registry.statuses():
            self.tell(status)

    def active(self, name: str) -> str | None:
        return self._active.get(name)

    def condition(self, model_id: str) -> Condition:
        return self._conditions.get(model_id, _GONE)

    def tell(self, status: ModelStatus) -> None:
        if status.state == "active":
            self._active[status.name] = status.model_id
        elif self._active.get(status.name) == status.model_id:
            del self._active[status.name]
        if status.state == "unloading":
            self._conditions.pop(status.model_id, None)
        else:
            self._conditions[status.model_id] = _condition(status)


def _condition(status: ModelStatus) -> Condition:
    if status.is_answering or (status.state, status.phase) in _ASLEEP:
        return _ANSWERING
    because = f": {status.reason}" if status.reason else ""
    if status.state in LOADING:
        return Condition("coming", f"is {status.state}{because}")
    return Condition("failed", f"is {status.state} and does not answer{because}")
