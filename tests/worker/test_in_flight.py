import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import QueueFullError
from headrace.worker.in_flight import MAX_RETRY_AFTER, MIN_RETRY_AFTER, InFlight


def test_one_more_than_may_be_in_flight_is_refused() -> None:
    in_flight = InFlight(2)
    in_flight.add("a", 5, 0.0)
    in_flight.add("b", 5, 0.0)
    with pytest.raises(QueueFullError, match="2 requests") as refusal:
        in_flight.add("c", 5, 0.0)
    assert refusal.value.retry_after == 1.0
    assert in_flight.settle("a", 1.0)
    in_flight.add("c", 5, 1.0)


def test_bytes_are_bounded_too() -> None:
    in_flight = InFlight(10, max_bytes=10)
    in_flight.add("a", 6, 0.0)
    with pytest.raises(QueueFullError, match="6 bytes, of 10"):
        in_flight.add("b", 5, 0.0)
    in_flight.add("b", 4, 0.0)
    in_flight.settle("a", 0.0)
    in_flight.add("c", 6, 0.0)


def test_the_retry_time_follows_the_measured_rate() -> None:
    in_flight = InFlight(64)
    for number in range(20):
        in_flight.add(str(number), 5, 0.0)
        in_flight.settle(str(number), number * 0.5)
    assert in_flight.retry_after(9.5) == pytest.approx(0.5 * 8)


class Load(RuleBasedStateMachine):
    """Whatever comes and goes in whatever order: both limits hold and nothing is counted twice."""

    MAX_ENTRIES, MAX_BYTES = 5, 40

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight(self.MAX_ENTRIES, self.MAX_BYTES)
        self.sizes: dict[str, int] = {}
        self.now = 0.0
        self.number = 0

    @rule(size=st.integers(1, 20), seconds=st.floats(0.0, 100.0))
    def add(self, size: int, seconds: float) -> None:
        self.now += seconds
        self.number += 1
        name = str(self.number)
        has_room = len(self.sizes) < self.MAX_ENTRIES
        if has_room and sum(self.sizes.values()) + size <= self.MAX_BYTES:
            self.in_flight.add(name, size, self.now)
            self.sizes[name] = size
        else:
            with pytest.raises(QueueFullError) as refusal:
                self.in_flight.add(name, size, self.now)
            assert refusal.value.retry_after == self.in_flight.retry_after(self.now)

    @rule(data=st.data(), seconds=st.floats(0.0, 100.0))
    def settle(self, data: st.DataObject, seconds: float) -> None:
        self.now += seconds
        name = str(data.draw(st.integers(0, self.number)))
        assert self.in_flight.settle(name, self.now) is (self.sizes.pop(name, None) is not None)

    @invariant()
    def it_counts_what_is_there(self) -> None:
        assert len(self.in_flight) == len(self.sizes)
        assert MIN_RETRY_AFTER <= self.in_flight.retry_after(self.now) <= MAX_RETRY_AFTER


TestLoad = Load.TestCase
