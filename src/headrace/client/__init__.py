"""A client of Headrace's own API. OpenAI's clients serve for OpenAI's routes."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from headrace.client.connection import Connection, ConnectionLostError, UnreachableError
from headrace.client.experiments import Experiments
from headrace.client.models import Accepted, Change, Endpoint, Model, Models, Swap
from headrace.client.rollouts import Rollout, Rollouts, RolloutSummary
from headrace.registry.changes.safety import Check, SafetyReport, UnsafeSwapError
from headrace.routing.experiments.state import ExperimentState

__all__ = [
    "Accepted",
    "Change",
    "Check",
    "Client",
    "ConnectionLostError",
    "Endpoint",
    "ExperimentState",
    "Model",
    "Models",
    "Rollout",
    "RolloutSummary",
    "SafetyReport",
    "Swap",
    "UnreachableError",
    "UnsafeSwapError",
]


class Client:
    """One server, asked by one thread at a time; every failure is a HeadraceError.

    What the server refuses raises the error that it raised there. UnreachableError: nothing
    answers at `url`, or no Headrace.
    """

    def __init__(
        self,
        url: str,
        *,
        on_answer: Callable[[bytes], None] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`on_answer` is told the JSON of every answer, refusal and event as it came."""
        self._connection = Connection(url, on_answer=on_answer, transport=transport)
        self.models = Models(self._connection)
        self.rollouts = Rollouts(self._connection)
        self.experiments = Experiments(self._connection)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
