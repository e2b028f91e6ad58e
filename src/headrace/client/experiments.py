"""The experiments of a server, and what users think of its answers, as plain values."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

import msgspec

from headrace.client.connection import Connection, read
from headrace.routing.experiments.state import ExperimentState

_EXPERIMENTS = "/api/v1/experiments"


class Experiments:
    """Everything that can be asked of a server's experiments."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> tuple[ExperimentState, ...]:
        """The newest first."""
        return read(self._connection.ask("GET", _EXPERIMENTS), _List).experiments

    def get(self, experiment_id: str) -> ExperimentState:
        return read(self._connection.ask("GET", _path(experiment_id)), ExperimentState)

    def create(
        self,
        name: str,
        variants: Mapping[str, float],
        metric: Literal["success", "latency", "feedback"],
        *,
        alpha: float | None = None,
        min_samples: int | None = None,
        promote_winner: bool = False,
    ) -> ExperimentState:
        """Share the users of a name out; `variants` are model ids with weights, control first."""
        body = {
            "name": name,
            "variants": [{"model_id": each, "weight": variants[each]} for each in variants],
            "metric": metric,
            "promote_winner": promote_winner,
        }
        if alpha is not None:
            body["alpha"] = alpha
        if min_samples is not None:
            body["min_samples"] = min_samples
        return read(self._connection.ask("POST", _EXPERIMENTS, body), ExperimentState)

    def conclude(self, experiment_id: str, winner: str | None = None) -> ExperimentState:
        """End it, and make a version active: the one named, or else the winner it has found."""
        body = {} if winner is None else {"winner": winner}
        answer = self._connection.ask(
            "POST",
            f"{_path(experiment_id)}/conclude",
            body,
            read_timeout=None,  # the version may have to be loaded first
        )
        return read(answer, ExperimentState)

    def feedback(self, request_id: str, score: float) -> None:
        """Say how good an answer was, from 0 to 1; its X-Request-ID names it."""
        body = {"request_id": request_id, "score": score}
        self._connection.ask("POST", "/api/v1/feedback", body)


class _List(msgspec.Struct, frozen=True):
    experiments: tuple[ExperimentState, ...]


def _path(experiment_id: str) -> str:
    return f"{_EXPERIMENTS}/{quote(experiment_id, '', errors='surrogateescape')}"
