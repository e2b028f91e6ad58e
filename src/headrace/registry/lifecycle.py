"""The states of a model version and the moves between them. Knows no process and no clock.

loading -> health_check -> ready -> active -> deprecated -> unloading
   |           |             |                  |
   +-> failed <+             |                  +-> active: a swap or a rollback back to it
                             +-> unloading
"""

from collections.abc import Mapping
from typing import Literal

from headrace.errors import HeadraceError

State = Literal["loading", "health_check", "ready", "active", "deprecated", "unloading", "failed"]

MOVES: Mapping[State, frozenset[State]] = {
    "loading": frozenset({"health_check", "failed", "unloading"}),
    "health_check": frozenset({"ready", "failed", "unloading"}),
    "ready": frozenset({"active", "unloading"}),
    "active": frozenset({"deprecated", "unloading"}),
    "deprecated": frozenset({"active", "unloading"}),
    "unloading": frozenset(),
    "failed": frozenset({"unloading"}),
}
"""Where each state may lead. A worker that dies and comes back is no move: see `ModelStatus`."""

SERVING: frozenset[State] = frozenset({"ready", "active", "deprecated"})
"""States of a version that has passed its health check: requests that name it are taken."""

LOADING: frozenset[State] = frozenset({"loading", "health_check"})
"""States of a version that is loaded for the first time."""


class IllegalMoveError(HeadraceError):
    """A fault of ours: a version was to be moved where its state does not lead."""

    code = "illegal_move"


class Lifecycle:
    """The state of one version; refuses every move that is not in `MOVES`."""

    def __init__(self, model_id: str, state: State = "loading") -> None:
        self._model_id = model_id
        self._state = state

    @property
    def state(self) -> State:
        return self._state

    def can_move(self, state: State) -> bool:
        return state in MOVES[self._state]

    def move(self, state: State) -> None:
        if not self.can_move(state):
            raise IllegalMoveError(f"{self._model_id} cannot go from {self._state} to {state}")
        self._state = state
