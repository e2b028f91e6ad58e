"""The endpoints of a model that take requests now, in arrays. Knows no time and no strategy.

Every strategy reads it, so an endpoint that takes none costs no choice anything, however many there
are. Joining, leaving and a change of weight are O(1).
"""

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.routing.balance.endpoint import Endpoint

Floats = NDArray[np.float64]
First = Callable[[Endpoint, float], float | int]
"""A column's value for an endpoint that joins with a weight."""
Again = Callable[[float, float, float], float]
"""The same for one that goes on: from its value, its weight before, and its weight now."""

_Kind = TypeVar("_Kind", bound=np.generic)


class Roster:
    """Its columns and its list are dense: the last endpoint takes the slot of one that leaves.

    Weights are above zero; an endpoint without weight does not join. `num_in_flight` and
    `tokens_in_flight` repeat what the endpoints hold.
    """

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self._slots: dict[Endpoint, int] = {}
        self._columns: list[Column[Any]] = []
        self._weights = self.column(
            np.float64, first=lambda _, weight: weight, again=lambda _, _before, weight: weight
        )
        self._num_in_flight = self.column(np.int64, lambda endpoint, _: endpoint.num_in_flight)
        self._tokens = self.column(np.int64, lambda endpoint, _: endpoint.tokens_in_flight)
        self._cumulative: Floats | None = None
        self._total_weight: float | None = None
        self._is_even: bool | None = None
        self.total_in_flight = 0
        self.total_tokens = 0

    def __len__(self) -> int:
        return len(self.endpoints)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.endpoints)

    def __contains__(self, endpoint: object) -> bool:
        return endpoint in self._slots

    @property
    def weights(self) -> Floats:
        return self._weights.values

    @property
    def num_in_flight(self) -> NDArray[np.int64]:
        return self._num_in_flight.values

    @property
    def tokens_in_flight(self) -> NDArray[np.int64]:
        return self._tokens.values

    @property
    def total_weight(self) -> float:
        if self._total_weight is None:
            self._total_weight = float(self.weights.sum())
        return self._total_weight

    @property
    def is_even(self) -> bool:
        """Whether all weights are equal."""
        if self._is_even is None:
            self._is_even = bool((self.weights == self.weights[:1]).all())
        return self._is_even

    def column(
        self, kind: type[_Kind], first: First, again: Again | None = None
    ) -> "Column[_Kind]":
        """Something to keep of each endpoint as long as it is here; asked for while empty.

        Without `again` another weight changes nothing in it.
        """
        assert not self.endpoints
        made = Column(kind, first, again)
        self._columns.append(made)
        return made

    def join(self, endpoint: Endpoint, weight: float) -> None:
        """Take requests from now on, or go on with this weight."""
        assert weight > 0
        if (slot := self._slots.get(endpoint)) is not None:
            before = float(self.weights[slot])
            if before == weight:
                return
            for column in self._columns:
                column.change(slot, before, weight)
        else:
            self._slots[endpoint] = len(self.endpoints)
            self.endpoints.append(endpoint)
            for column in self._columns:
                column.append(endpoint, weight)
            self.total_in_flight += endpoint.num_in_flight
            self.total_tokens += endpoint.tokens_in_flight
        self._forget_sums()

    def leave(self, endpoint: Endpoint) -> None:
        """Take no more; nothing happens to one that takes none."""
        if (slot := self._slots.pop(endpoint, None)) is None:
            return
        last = self.endpoints.pop()
        if last is not endpoint:
            self.endpoints[slot] = last
            self._slots[last] = slot
        for column in self._columns:
            column.drop(slot)
        self.total_in_flight -= endpoint.num_in_flight
        self.total_tokens -= endpoint.tokens_in_flight
        self._forget_sums()

    def add_load(self, endpoint: Endpoint, num_requests: int, num_tokens: int) -> None:
        """Count so many more in flight to an endpoint, whether it takes requests or not."""
        endpoint.num_in_flight += num_requests
        endpoint.tokens_in_flight += num_tokens
        if (slot := self._slots.get(endpoint)) is not None:
            self._num_in_flight.values[slot] = endpoint.num_in_flight
            self._tokens.values[slot] = endpoint.tokens_in_flight
            self.total_in_flight += num_requests
            self.total_tokens += num_tokens

    def slot(self, endpoint: Endpoint) -> int | None:
        return self._slots.get(endpoint)

    def slots(self, endpoints: Collection[Endpoint]) -> list[int]:
        """Where these stand, without those that take no requests."""
        found = map(self._slots.get, endpoints)
        return [slot for slot in found if slot is not None]

    def totals(self, excluded: Collection[int]) -> tuple[float, int, int]:
        """Weight, requests and tokens in flight of all together, but for these slots."""
        weight, num_in_flight, num_tokens = (
            self.total_weight,
            self.total_in_flight,
            self.total_tokens,
        )
        for slot in excluded:
            weight -= self.weights.item(slot)
            num_in_flight -= self.num_in_flight.item(slot)
            num_tokens -= self.tokens_in_flight.item(slot)
        return weight, num_in_flight, num_tokens

    def cumulative_weights(self, excluding: Collection[Endpoint]) -> Floats:
        """The running sum of the weights by slot, where some count as zero."""
        if excluding:
            weights = self.weights.copy()
            weights[self.slots(excluding)] = 0.0
            return weights.cumsum()
        if self._cumulative is None:
            self._cumulative = self.weights.cumsum()
        return self._cumulative

    def check(self) -> None:
        """Prove that list, slots and columns agree with the endpoints."""
        assert self._slots == {endpoint: slot for slot, endpoint in enumerate(self.endpoints)}
        assert {len(column.values) for column in self._columns} == {len(self)}
        assert (self.weights > 0).all()
        assert self.total_weight == self.weights.sum()
        assert self.is_even == (len(set(self.weights.tolist())) <= 1)
        assert self.total_in_flight == self.num_in_flight.sum()
        assert self.total_tokens == self.tokens_in_flight.sum()
        assert self.num_in_flight.tolist() == [e.num_in_flight for e in self.endpoints]
        assert self.tokens_in_flight.tolist() == [e.tokens_in_flight for e in self.endpoints]

    def _forget_sums(self) -> None:
        self._cumulative = self._total_weight = self._is_even = None


class Column(Generic[_Kind]):
    """One number an endpoint, in an array that grows by doubling."""

    def __init__(self, kind: type[_Kind], first: First, again: Again | None) -> None:
        self._space: NDArray[_Kind] = np.zeros(8, dtype=kind)
        self._first = first
        self._again = again
        self.values = self._space[:0]

    def append(self, endpoint: Endpoint, weight: float) -> None:
        count = len(self.values)
        if count == len(self._space):
            self._space = np.concatenate((self._space, np.zeros_like(self._space)))
        self.values = self._space[: count + 1]
        self.values[count] = self._first(endpoint, weight)

    def change(self, slot: int, before: float, weight: float) -> None:
        if self._again is not None:
            self.values[slot] = self._again(float(self.values[slot]), before, weight)

    def drop(self, slot: int) -> None:
        """Move the last value here."""
        last = len(self.values) - 1
        self.values[slot] = self.values[last]
        self.values = self._space[:last]


def draw(cumulative: Floats, random: Random) -> int:
    """A slot with the chance that its weight has in the sum, which is above zero."""
    # The point is below the sum, so a slot whose weight is zero is never the first beyond it.
    return int(cumulative.searchsorted(random.random() * float(cumulative[-1]), side="right"))
