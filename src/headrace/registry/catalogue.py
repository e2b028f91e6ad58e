"""Every model and version by name. Knows no process and no database."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.errors import ConflictError, ModelNotFoundError
from headrace.registry.lifecycle import LOADING
from headrace.registry.served import ServedModel
from headrace.registry.version import Version

_MAX_SHOWN = 200  # characters of a name that a client made up
_MAX_DIGITS = 18


class Catalogue:
    """What is served, and what is on its way out."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}
        self._ending: dict[Version, None] = {}  # in order
        self.on_forgotten: Callable[[str, int], None] = lambda _name, _version: None

    def model(self, name: str) -> ServedModel:
        if (model := self.models.get(name)) is None or not model.versions:
            raise _not_found(name)
        return model

    def version(self, model_id: str) -> tuple[ServedModel, Version]:
        """A version by its id, whatever its state, with its model."""
        name, number = split(model_id)
        model = self.models.get(name)
        version = None if model is None or number is None else model.versions.get(number)
        if model is None or version is None:
            raise _not_found(model_id)
        return model, version

    def find(self, name: str) -> Version:
        """Whom a request means: a version by its id, or the active one of a name."""
        base, number = split(name)
        if (model := self.models.get(base)) is None:
            raise _not_found(name)
        named = model.active or model.latest
        version = named if number is None else model.versions.get(number)
        if version is None or version.state == "unloading":
            raise _not_found(name)
        return version

    @asynccontextmanager
    async def changing(self, name: str, kind: str) -> AsyncIterator[ServedModel]:
        """The model of that name, while a change of it runs.

        Look up its versions inside: others may have ended while this waited for its turn.
        """
        model = self.model(name)
        async with model.changing(kind):
            if self.model(name) is not model:
                raise _not_found(name)
            yield model

    @property
    def num_loads(self) -> int:
        """Loads under way, those among them that are only being judged."""
        judged = sum(model.change == "load" for model in self.models.values())
        return judged + sum(version.state in LOADING for version in self.versions())

    def versions(self) -> list[Version]:
        served = [v for model in self.models.values() for v in model.versions.values()]
        return [*served, *(version for version in self._ending if version not in served)]

    def refuse_ending(self, model_id: str) -> None:
        """Raise ConflictError while the last version of this id still has requests."""
        if any(version.model_id == model_id for version in self._ending):
            raise ConflictError(f"{model_id} is still being unloaded")

    def begin_to_end(self, version: Version) -> None:
        """It takes no more requests, and is here until those that it has have ended."""
        self._ending[version] = None
        version.move("unloading")

    def forget(self, model: ServedModel, version: Version) -> None:
        self._ending.pop(version, None)
        model.remove(version)
        self.forget_empty(model)
        if version.spec.version not in self.models.get(model.name, model).versions:
            self.on_forgotten(model.name, version.spec.version)

    def forget_empty(self, model: ServedModel) -> None:
        """Of a declared model it must stay known that its versions were unloaded."""
        is_empty = not model.versions and model.change is None and not model.declaration
        if is_empty and self.models.get(model.name) is model:
            del self.models[model.name]


def split(model: str) -> tuple[str, int | None]:
    """A name, or the name and the number of a model id."""
    name, at, number = model.rpartition("@")
    if not at:
        return model, None
    is_number = number.isascii() and number.isdecimal() and not number.startswith("0")
    if not (is_number and len(number) <= _MAX_DIGITS):
        raise _not_found(model)
    return name, int(number)


def _not_found(model: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"the model `{model[:_MAX_SHOWN]}` does not exist", param="model")
