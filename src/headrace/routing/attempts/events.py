"""Counts, and writes into the log, what a router does beyond a request's first try."""

from typing import Literal

import structlog

from headrace.endpoints import RoutingCounts

log = structlog.get_logger("headrace.routing")


class RoutingEvents:
    """Of one version."""

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._num_retries = self._num_moves = 0

    @property
    def counts(self) -> RoutingCounts:
        return RoutingCounts(self._num_retries, self._num_moves)

    def retried(self) -> None:
        self._num_retries += 1

    def moved(self, request_id: str, by: Literal["tokens", "text"], reason: str) -> None:
        """An answer that had begun goes on at another endpoint."""
        self._num_moves += 1
        log.warning(
            "answer.moved", model=self._model_id, request_id=request_id, by=by, reason=reason
        )
