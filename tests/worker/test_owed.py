from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import HeadraceError, QueueFullError
from headrace.worker.owed import MAX_DEATHS, MAX_SENDS, Owed, OwedAnswers


def owed(data: bytes = b"frame") -> Owed:
    return Owed(data, lambda _: None)


def test_one_more_than_may_be_in_flight_is_refused() -> None:
    table = OwedAnswers(2)
    table.add("a", owed(), 0.0)
    table.add("b", owed(), 0.0)
    with pytest.raises(QueueFullError, match="2 requests") as refusal:
        table.add("c", owed(), 0.0)
    assert refusal.value.retry_after == 1.0
    table.settle("a", 1.0)
    table.add("c", owed(), 1.0)


def test_bytes_are_bounded_too() -> None:
    table = OwedAnswers(10, max_bytes=10)
    table.add("a", owed(b"123456"), 0.0)
    with pytest.raises(QueueFullError, match="6 bytes, of 10"):
        table.add("b", owed(b"12345"), 0.0)
    table.add("b", owed(b"1234"), 0.0)
    table.settle("a", 0.0)
    table.add("c", owed(b"123456"), 0.0)


def test_the_retry_time_follows_the_measured_rate() -> None:
    table = OwedAnswers(64)
    for number in range(20):
        table.add(str(number), owed(), 0.0)
        table.settle(str(number), number * 0.5)
    assert table.retry_after(9.5) == pytest.approx(0.5 * 8)


def test_last_tries_are_made_one_at_a_time() -> None:
    table = OwedAnswers(10)
    entries = {name: owed(name.encode()) for name in "abcd"}
    for name, entry in entries.items():
        table.add(name, entry, 0.0)
    for _ in range(MAX_SENDS - 1):
        assert list(table.to_send()) == [b"a", b"b", b"c", b"d"]
        assert table.next_suspect() is None
        assert table.lost("fell over") == []
    assert list(table.to_send()) == []
    assert table.next_suspect() == b"a"
    assert table.next_suspect() is None
    entries["a"].has_moved = True
    table.settle("b", 0.0)
    assert table.next_suspect() == b"c"
    assert [name for name, _ in table.lost("fell over")] == ["c"]
    table.settle("c", 0.0)
    assert table.ids() == ["a", "d"]
    assert list(table.to_send()) == [b"a"]  # of which something came: it is no suspect any more
    assert table.next_suspect() == b"d"


def test_what_outlives_too_many_workers_is_given_up() -> None:
    table = OwedAnswers(10)
    entry = owed()
    table.add("a", entry, 0.0)
    for _ in range(MAX_DEATHS - 1):
        assert list(table.to_send()) == [b"frame"]
        entry.has_moved = True
        assert table.lost("fell over") == []
    assert list(table.to_send()) == [b"frame"]
    entry.has_moved = True
    ((_, error),) = table.lost("fell over")
    assert error.message == "fell over; 10 workers in a row ended with this request"


class Deaths(RuleBasedStateMachine):
    """Every entry is kept or failed, and sent at most MAX_SENDS times with nothing coming of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = OwedAnswers(1000)
        self.sent: dict[str, int] = {}
        self.deaths: Counter[str] = Counter()
        self.errors: dict[str, HeadraceError] = {}
        self.is_attached = False
        self.number = 0

    @rule()
    def add(self) -> None:
        self.number += 1
        name = str(self.number)
        entry = Owed(name.encode(), lambda error: self.errors.__setitem__(name, error))
        self.table.add(name, entry, 0.0)
        self.sent[name] = 0
        if self.is_attached:
            assert entry.send() == name.encode()
            self.sent[name] = 1

    @precondition(lambda self: not self.is_attached)
    @rule()
    def attach(self) -> None:
        for data in self.table.to_send():
            self.sent[data.decode()] += 1
        self.is_attached = True
        self.try_suspect()

    @precondition(lambda self: self.is_attached)
    @rule()
    def try_suspect(self) -> None:
        if (data := self.table.next_suspect()) is not None:
            self.sent[data.decode()] += 1
            assert self.sent[data.decode()] <= MAX_SENDS

    @precondition(lambda self: self.is_attached and len(self.table))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.table.ids()))
        entry = self.table.get(name)
        assert entry is not None
        if entry.is_out:
            entry.has_moved = True
            self.sent[name] = 0

    @precondition(lambda self: self.is_attached)
    @rule()
    def lose(self) -> None:
        for name in self.table.ids():
            entry = self.table.get(name)
            assert entry is not None
            self.deaths[name] += entry.is_out
        for name, error in self.table.lost("the worker fell over"):
            entry = self.table.settle(name, 0.0)
            assert entry is not None
            entry.fail(error)
        self.is_attached = False

    @invariant()
    def nothing_is_sent_too_often_or_forgotten(self) -> None:
        assert max(self.sent.values(), default=0) <= MAX_SENDS
        assert set(self.table.ids()) | set(self.errors) == set(self.sent)
        assert not set(self.table.ids()) & set(self.errors)
        for name in self.errors:
            assert self.sent[name] == MAX_SENDS or self.deaths[name] == MAX_DEATHS


TestDeaths = Deaths.TestCase
