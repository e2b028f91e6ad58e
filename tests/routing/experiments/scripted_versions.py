"""A registry of versions that do what a test says."""

from headrace.errors import HeadraceError, ModelNotFoundError, NotReadyError


class ScriptedVersions:
    """Those in `answering` answer; `swap_error` is what the next promotion raises."""

    def __init__(self, *answering: str) -> None:
        self.answering = set(answering or ("chat@1", "chat@2", "chat@3"))
        self.loading: set[str] = set()
        self.made_active: dict[str, str] = {}
        self.promoted: list[tuple[str, str]] = []
        self.swap_error: HeadraceError | None = None

    def active(self, name: str) -> str | None:
        return self.made_active.get(name, f"{name}@1")

    def refusal(self, model_id: str) -> HeadraceError | None:
        if model_id in self.answering:
            return None
        if model_id in self.loading:
            return NotReadyError(f"{model_id} is loading")
        return ModelNotFoundError(f"There is no model {model_id!r}.")

    async def promote(self, model_id: str, *, who: str) -> None:
        if self.swap_error is not None:
            raise self.swap_error
        self.promoted.append((model_id, who))
        self.made_active[model_id.partition("@")[0]] = model_id
