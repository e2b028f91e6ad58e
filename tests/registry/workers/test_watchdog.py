from headrace.generation import EngineStats, ModelInfo
from headrace.registry.workers.patience import Patience
from headrace.registry.workers.watchdog import Watchdog
from headrace.worker import frames
from scripted_worker import info_of

PATIENCE = Patience(
    tick=1.0,
    silence=3,
    silence_while_loading=10,
    standstill=5,
    standstill_at_first=12,
    standstill_while_loading=20,
)
INFO: ModelInfo = info_of("m@1")


def heartbeat(num_steps: int, *, has_work: bool) -> frames.Heartbeat:
    return frames.Heartbeat(num_steps, has_work, 1, EngineStats(num_steps=num_steps))


def ready() -> Watchdog:
    watchdog = Watchdog(PATIENCE)
    watchdog.hear(frames.Ready(INFO))
    return watchdog


def ticks_until_fault(watchdog: Watchdog, frame: frames.FromWorker | None = None) -> int:
    for count in range(1, 100):
        if frame is not None:
            watchdog.hear(frame)
        if watchdog.tick() is not None:
            return count
    return 100


def test_silence_is_noticed_sooner_once_the_model_is_ready() -> None:
    assert ticks_until_fault(Watchdog(PATIENCE)) == 11
    assert ticks_until_fault(ready()) == 4


def test_work_without_steps_is_noticed_in_spite_of_heartbeats() -> None:
    assert ticks_until_fault(ready(), heartbeat(7, has_work=True)) == 6


def test_the_first_step_may_take_longer() -> None:
    assert ticks_until_fault(ready(), heartbeat(0, has_work=True)) == 13


def test_a_worker_is_allowed_ten_times_its_slowest_step() -> None:
    watchdog = ready()
    watchdog.hear(heartbeat(1, has_work=True))
    for _ in range(4):
        watchdog.hear(heartbeat(1, has_work=True))
        assert watchdog.tick() is None
    watchdog.hear(heartbeat(2, has_work=True))  # took 4 ticks
    watchdog.hear(heartbeat(3, has_work=True))
    assert ticks_until_fault(watchdog, heartbeat(3, has_work=True)) == 41


def test_idle_time_makes_no_step_slow() -> None:
    watchdog = ready()
    watchdog.hear(heartbeat(1, has_work=False))
    for _ in range(50):
        watchdog.hear(heartbeat(1, has_work=False))
        assert watchdog.tick() is None
    assert ticks_until_fault(watchdog, heartbeat(2, has_work=True)) == 6


def test_an_idle_worker_may_stand_still_for_ever() -> None:
    assert ticks_until_fault(ready(), heartbeat(7, has_work=False)) == 100


def test_each_finished_step_starts_the_count_again() -> None:
    watchdog = ready()
    for number in range(100):
        watchdog.hear(heartbeat(number, has_work=True))
        assert watchdog.tick() is None
        assert watchdog.tick() is None


def test_a_step_frame_is_progress_too() -> None:
    watchdog = ready()
    watchdog.hear(heartbeat(0, has_work=True))
    for number in range(100):
        watchdog.hear(frames.Step([], EngineStats(num_steps=number)))
        assert watchdog.tick() is None


def test_a_load_without_progress_is_given_up_and_one_with_progress_is_not() -> None:
    assert ticks_until_fault(Watchdog(PATIENCE), heartbeat(0, has_work=False)) == 21
    assert ticks_until_fault(Watchdog(PATIENCE), frames.Progress("reading", 0.1)) == 100


def test_the_fault_says_what_was_missing() -> None:
    watchdog = ready()
    for _ in range(3):
        assert watchdog.tick() is None
    assert watchdog.tick() == "has not been heard for 3 s"
