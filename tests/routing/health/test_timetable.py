from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.routing.health.timetable import Timetable

KEYS = st.sampled_from("abcd")
TIMES = st.sampled_from([0.0, 1.0, 2.0, 3.0, inf])


class Machine(RuleBasedStateMachine):
    """Beside a plain account of what is due when."""

    def __init__(self) -> None:
        super().__init__()
        self.timetable: Timetable[str] = Timetable()
        self.times: dict[str, float] = {}

    @rule(key=KEYS, time=TIMES)
    def put(self, key: str, time: float) -> None:
        self.timetable.put(key, time)
        self.times[key] = time

    @rule(now=TIMES.filter(lambda time: time < inf))
    def take(self, now: float) -> None:
        taken = self.timetable.take(now)
        earliest = min(self.times.values(), default=inf)
        if taken is None:
            assert earliest > now
        else:
            assert self.times.pop(taken) == earliest <= now

    @invariant()
    def it_holds_what_was_put(self) -> None:
        self.timetable.check()
        assert all(self.timetable.time(key) == self.times.get(key, inf) for key in "abcd")


TestTimetable = Machine.TestCase


def test_an_earlier_time_and_then_the_old_one_again_make_it_due_once() -> None:
    timetable: Timetable[str] = Timetable()
    for time in (5.0, 1.0, 5.0):
        timetable.put("a", time)
    assert timetable.take(4.0) is None
    assert timetable.take(5.0) == "a"
    assert timetable.take(9.0) is None
