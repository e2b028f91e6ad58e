import pytest

from headrace.engine.config import EngineConfig
from headrace.engine.queue_bound import QueueBound
from headrace.errors import QueueFullError


def test_the_queue_is_bounded_by_requests_and_by_tokens() -> None:
    queue = QueueBound(EngineConfig(max_queued_requests=2, max_queued_tokens=100))
    queue.enter("a", 60, 0)
    with pytest.raises(QueueFullError, match="60 prompt tokens"):
        queue.enter("b", 60, 0)
    queue.enter("b", 10, 0)
    with pytest.raises(QueueFullError):
        queue.enter("c", 10, 0)
    queue.leave("a", 0)
    queue.enter("c", 10, 0)
    assert (queue.num_requests, queue.num_tokens) == (2, 20)


def test_a_better_count_of_tokens_may_still_refuse() -> None:
    queue = QueueBound(EngineConfig(max_queued_tokens=100))
    queue.enter("a", 50, 0)
    queue.enter("b", 10, 0)
    with pytest.raises(QueueFullError):
        queue.resize("b", 60, 0)
    assert (queue.num_requests, queue.num_tokens) == (1, 50)


def test_a_start_that_is_told_late_does_not_count_time_twice() -> None:
    queue = QueueBound(EngineConfig(max_queued_requests=2))
    queue.enter("a", 10, 0)
    queue.enter("b", 10, 0)
    queue.leave("unknown", 10)
    queue.start("a", 5)
    queue.enter("c", 10, 10)
    with pytest.raises(QueueFullError) as caught:
        queue.enter("d", 10, 10)
    assert 7 < caught.value.retry_after < 10  # ten tokens have left in the ten seconds so far


def test_before_anything_is_measured_the_retry_is_a_second() -> None:
    queue = QueueBound(EngineConfig(max_queued_requests=1))
    queue.enter("a", 10, 0)
    with pytest.raises(QueueFullError) as caught:
        queue.enter("b", 10, 0)
    assert caught.value.retry_after == 1.0


def test_a_refused_caller_who_comes_back_when_told_finds_room() -> None:
    queue = QueueBound(EngineConfig(max_queued_requests=20))
    now, number, waiting = 0.0, 0, list[str]()
    for _ in range(20):
        waiting.append(str(number))
        queue.enter(str(number), 100, now)
        number += 1
    promises: list[float] = []

    def drain_until(time: float) -> None:
        """One request starts every quarter second."""
        nonlocal now
        while now + 0.25 <= time:
            now += 0.25
            if waiting:
                queue.start(waiting.pop(0), now)

    drain_until(2.0)
    while queue.num_requests < 20:
        waiting.append(str(number))
        queue.enter(str(number), 100, now)
        number += 1
    for _ in range(10):
        with pytest.raises(QueueFullError) as caught:
            queue.enter("refused", 100, now)
        assert caught.value.retry_after is not None
        promises.append(now + caught.value.retry_after)
    assert promises == sorted(promises)
    assert promises[-1] < 2.0 + 10 * 0.25 * 1.2
    for name, promise in enumerate(promises):
        drain_until(promise + 0.26)
        waiting.append(f"back {name}")
        queue.enter(f"back {name}", 100, now)


def test_a_standstill_promises_a_minute_at_most() -> None:
    queue = QueueBound(EngineConfig(max_queued_requests=2))
    queue.enter("a", 1, 0)
    queue.enter("b", 1000, 0)
    queue.start("a", 1)
    queue.enter("c", 100_000, 500)
    with pytest.raises(QueueFullError) as caught:
        queue.enter("d", 100_000, 1000)
    assert caught.value.retry_after == 60
