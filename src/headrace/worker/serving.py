"""What the worker needs of a loaded model, whatever computes it."""

from collections.abc import Callable
from typing import Protocol

from headrace.engine.delivery import Delivery
from headrace.executors.executor import Progress
from headrace.generation import EngineStats, GenerationRequest, ModelInfo, Prompt
from headrace.worker.spec import WorkerSpec

Deliver = Callable[[list[Delivery], EngineStats], None]
"""Called by any thread, once a step, with everything that the step brought; does not block."""


class ServingEngine(Protocol):
    """An engine that steps by itself. All methods belong to the event loop."""

    @property
    def stats(self) -> EngineStats: ...

    @property
    def has_work(self) -> bool: ...

    async def add(self, request: GenerationRequest) -> None:
        """Take a request, or raise the HeadraceError that refuses it."""
        ...

    def abort(self, request_id: str) -> None: ...

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]: ...

    async def detokenize(self, token_ids: list[int]) -> str: ...

    async def wait_for_fault(self) -> BaseException:
        """Return what made the engine itself fail, if it ever does."""
        ...

    async def drain(self) -> None:
        """Refuse what is new and return when the rest is done."""
        ...

    async def close(self) -> None: ...


class LoadedModel(Protocol):
    """A model in memory that does not run yet."""

    @property
    def info(self) -> ModelInfo: ...

    def start(self, deliver: Deliver) -> ServingEngine: ...

    def close(self) -> None:
        """Give the memory back; its engine must be closed before."""
        ...


Load = Callable[[WorkerSpec, Progress], LoadedModel]
"""Blocks until the model is in memory; HeadraceError says why it cannot be."""
