"""Which versions have workers: a property over many schedules, then real workers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.config import EngineConfig
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    ModelNotFoundError,
    NotReadyError,
    QueueFullError,
)
from headrace.registry import residency as residency_module
from headrace.registry.residency import Residency
from headrace.registry.spec import ModelSpec
from headrace.registry.version import Version
from scripted_serving import IMPATIENT, Served, is_alive, serving
from scripted_worker import MARKER, SLOW_MARKER

COUNT_3 = "0 1 2 "
TURNS = 3000  # of the event loop: many more than any schedule below needs


# Any schedule of requests, on versions that are not real


class FakeVersion:
    """Has what a Residency uses of a version, takes turns of the loop for time, and counts."""

    def __init__(self, number: int, crowd: "Crowd") -> None:
        self.spec = ModelSpec(name="m", version=number, source="fake")
        self.model_id = self.spec.model_id
        self.state = "active"
        self.reason: str | None = None
        self.last_used = 0.0
        self.num_leases = 0
        self.is_proven = False
        self.fails = False
        self._has_workers = self._is_ending = False
        self._ending: asyncio.Task[None] | None = None
        self._crowd = crowd

    @property
    def has_process(self) -> bool:
        return self._has_workers or self._is_ending

    @property
    def is_idle(self) -> bool:
        return self.is_proven and self.num_leases == 0

    @property
    def can_wake(self) -> bool:
        return not self._has_workers

    async def bring_up(self) -> None:
        assert not self.has_process, "it is brought up once"
        self._has_workers = True
        self._crowd.check()
        await turns(3)
        if self.fails:
            raise HeadraceError("no luck")
        self.is_proven, self.last_used = True, self._crowd.tick()

    def take_down(self, _drain_timeout: float) -> asyncio.Task[None]:
        assert self.num_leases == 0, "who is in use is not taken down"
        had_workers, self._has_workers, self.is_proven = self._has_workers, False, False
        if self._ending is None or self._ending.done():
            self._is_ending = had_workers
            self._ending = asyncio.create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        await turns(2)
        self._is_ending = False

    async def ended(self) -> None:
        if self._ending is not None:
            await asyncio.shield(self._ending)


class ReplacedVersion(FakeVersion):
    """Only a change may bring it back."""

    can_wake = False


class SlowVersion(FakeVersion):
    """Takes a while to load."""

    async def bring_up(self) -> None:
        await asyncio.sleep(0.1)
        await super().bring_up()


@dataclass
class Crowd:
    """Versions, more than have a place, and the requests that want them."""

    max_loaded: int
    versions: list[FakeVersion] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.residency = Residency(self.max_loaded)

    def check(self) -> None:
        assert sum(version.has_process for version in self.versions) <= self.max_loaded

    def tick(self) -> float:
        self.now += 1
        return self.now

    async def request(self, version: FakeVersion, num_turns: int) -> None:
        """As `Registry.acquire` does it."""
        while not version.is_proven:
            assert self.residency.can_wake(version), "nobody waits for what does not come"
            await self.residency.wake(version, None)
        version.num_leases += 1
        try:
            await turns(num_turns)
        finally:
            version.num_leases -= 1
            version.last_used = self.tick()
            if version.num_leases == 0:
                self.residency.someone_left()

    async def end_idle(self, version: FakeVersion) -> None:
        """As `Upkeep` does it."""
        if version.is_idle:
            await self.residency.end_idle(version)


@dataclass(frozen=True)
class Step:
    """What begins after some turns, on which version; and after how many turns it is given up."""

    kind: str
    version: int
    after: int
    lasts: int
    leaves_after: int | None


def as_version(version: FakeVersion) -> Version:
    return cast("Version", version)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(
            ["request", "request", "request", "change", "end_idle", "fail", "heal"]
        ),
        version=st.integers(0, 3),
        after=st.integers(0, 12),
        lasts=st.integers(0, 6),
        leaves_after=st.none() | st.integers(0, 15),
    ),
    min_size=2,
    max_size=14,
)


async def play(crowd: Crowd, steps: Iterable[Step]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(_play(crowd, step)) for step in steps]


async def _play(crowd: Crowd, step: Step) -> None:
    version = crowd.versions[step.version]
    await turns(step.after)
    match step.kind:
        case "request":
            work = asyncio.create_task(crowd.request(version, step.lasts))
            if step.leaves_after is not None:
                await turns(step.leaves_after)
                work.cancel()
            await asyncio.wait([work])
            if not work.cancelled() and (error := work.exception()) is not None:
                assert isinstance(error, NotReadyError), error
                assert version.reason == "no luck"
        case "change":
            with suppress(HeadraceError):
                await crowd.residency.bring_up(as_version(version))
        case "end_idle":
            await crowd.end_idle(version)
        case kind:
            version.fails = kind == "fail"


async def everyone_ends(tasks: list[asyncio.Task[None]]) -> None:
    for _ in range(TURNS):
        if all(task.done() for task in tasks):
            break
        await asyncio.sleep(0)
    assert all(task.done() for task in tasks), "somebody waits for ever"
    await asyncio.gather(*tasks)
    await turns(20)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, "nothing goes on when nobody wants anything"


@settings(max_examples=200)
@given(max_loaded=st.integers(1, 3), steps=STEPS)
def test_whatever_is_asked_for_at_once_every_request_ends_and_places_are_kept(
    max_loaded: int, steps: list[Step]
) -> None:
    async def schedule() -> None:
        crowd = Crowd(max_loaded)
        crowd.versions = [FakeVersion(number, crowd) for number in range(4)]
        await everyone_ends(await play(crowd, steps))

    asyncio.run(schedule())


async def test_two_models_that_are_wanted_in_turn_do_not_drive_each_other_out_unused() -> None:
    crowd = Crowd(1)
    crowd.versions = [FakeVersion(number, crowd) for number in range(2)]
    await everyone_ends(
        [
            asyncio.create_task(crowd.request(version, 1))
            for version in crowd.versions
            for _ in range(5)
        ]
    )


async def test_who_waited_for_a_place_and_left_drives_nobody_out() -> None:
    crowd = Crowd(1)
    first, second = crowd.versions = [FakeVersion(number, crowd) for number in range(2)]
    busy = asyncio.create_task(crowd.request(first, 50))
    await turns(20)
    waiting = asyncio.create_task(crowd.request(second, 1))
    await turns(5)
    waiting.cancel()
    await everyone_ends([busy])
    assert first.is_idle
    assert not second.has_process


async def test_who_waits_for_a_place_waits_no_longer_than_it_may() -> None:
    crowd = Crowd(1)
    first, second = crowd.versions = [FakeVersion(number, crowd) for number in range(2)]
    busy = asyncio.create_task(crowd.request(first, sys.maxsize))
    await turns(20)
    with pytest.raises(DeadlineError, match="m@1"):
        await crowd.residency.bring_up(as_version(second), time.monotonic() + 0.01)
    busy.cancel()
    await asyncio.wait([busy])
    await crowd.request(second, 1)  # the place was left to others
    assert second.is_idle


async def test_a_place_in_time_leaves_the_load_all_the_time_it_needs() -> None:
    crowd = Crowd(1)
    (version,) = crowd.versions = [SlowVersion(0, crowd)]
    await crowd.residency.bring_up(as_version(version), time.monotonic() + 0.05)
    assert version.is_idle


async def test_a_change_and_a_request_that_want_the_same_version_start_it_once() -> None:
    crowd = Crowd(1)
    (version,) = crowd.versions = [FakeVersion(0, crowd)]
    change = asyncio.create_task(crowd.residency.bring_up(as_version(version)))
    requests = [asyncio.create_task(crowd.request(version, 1)) for _ in range(2)]
    await everyone_ends([change, *requests])
    assert version.is_idle


async def test_a_request_does_not_bring_back_what_a_change_could_not() -> None:
    crowd = Crowd(1)
    (version,) = crowd.versions = [ReplacedVersion(0, crowd)]
    version.fails = True
    change = asyncio.create_task(crowd.residency.bring_up(as_version(version)))
    await turns(1)
    assert crowd.residency.can_wake(as_version(version))
    await crowd.residency.wake(as_version(version), None)
    assert not version.has_process
    assert not crowd.residency.can_wake(as_version(version))
    with pytest.raises(HeadraceError, match="no luck"):
        await change


@pytest.mark.parametrize("state", ["loading", "health_check"])
async def test_nobody_waits_for_a_first_load(state: str) -> None:
    crowd = Crowd(1)
    (version,) = crowd.versions = [ReplacedVersion(0, crowd)]
    version.state = state
    change = asyncio.create_task(crowd.residency.bring_up(as_version(version)))
    await turns(1)
    assert not crowd.residency.can_wake(as_version(version))
    await change


async def test_who_waits_for_a_version_can_be_sent_to_look_again() -> None:
    crowd = Crowd(1)
    first, second = crowd.versions = [FakeVersion(number, crowd) for number in range(2)]
    busy = asyncio.create_task(crowd.request(first, 50))
    await turns(20)
    waiting = asyncio.create_task(crowd.residency.wake(as_version(second), None))
    await turns(5)
    assert not waiting.done()
    crowd.residency.look_again(as_version(second))
    crowd.residency.look_again(as_version(first))  # for which nobody waits
    await turns(3)
    assert waiting.done()
    await everyone_ends([waiting, busy])
    assert not second.has_process, "nobody waits for it any more"


async def test_who_looks_again_and_still_wants_the_version_gets_it() -> None:
    crowd = Crowd(1)
    (version,) = crowd.versions = [FakeVersion(0, crowd)]
    requests = [asyncio.create_task(crowd.request(version, 1)) for _ in range(3)]
    await turns(3)
    crowd.residency.look_again(as_version(version))
    await everyone_ends(requests)
    assert version.is_idle


async def test_a_version_whose_wake_failed_would_not_wake_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(residency_module, "FAILED_PAUSE", 0.0)
    crowd = Crowd(1)
    (version,) = crowd.versions = [FakeVersion(0, crowd)]
    assert crowd.residency.would_wake(as_version(version))
    for _ in range(2):
        version.fails = True
        await crowd.residency.try_again(as_version(version))
        await crowd.residency.wake(as_version(version), None)
        assert version.reason == "no luck"
        assert crowd.residency.can_wake(as_version(version))
        assert not crowd.residency.would_wake(as_version(version))
        version.fails = False
        await crowd.residency.try_again(as_version(version))
        assert version.is_idle
        await crowd.residency.take_down(as_version(version))
        assert crowd.residency.would_wake(as_version(version))


async def test_it_is_tried_again_unasked_after_a_pause_and_where_that_drives_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd(1)
    first, second = crowd.versions = [FakeVersion(number, crowd) for number in range(2)]
    await crowd.residency.try_again(as_version(first))
    assert not first.has_process, "it sleeps because nobody wants it"
    first.fails = True
    with pytest.raises(NotReadyError):
        await crowd.request(first, 1)
    first.fails = False
    await crowd.residency.try_again(as_version(first))
    assert not first.has_process, "the pause is not over"
    monkeypatch.setattr(residency_module, "FAILED_PAUSE", 0.0)
    crowd.residency.forget(as_version(first))
    first.fails = True
    await crowd.residency.wake(as_version(first), None)
    first.fails = False
    await crowd.request(second, 1)
    await crowd.residency.try_again(as_version(first))
    assert second.is_idle, "it keeps its place"
    await crowd.residency.take_down(as_version(second))
    await crowd.residency.try_again(as_version(first))
    assert first.is_idle


# Real workers


@asynccontextmanager
async def limited(
    state_dir: Path, number: int, max_loaded: int, **fields: object
) -> AsyncIterator[Served]:
    async with serving(
        state_dir, specs=specs(number, **fields), max_loaded_models=max_loaded, wait=False
    ) as served:
        async with asyncio.timeout(30):
            await served.registry.loaded()
        yield served


def specs(number: int, **fields: object) -> list[ModelSpec]:
    return [
        ModelSpec(name=f"m{each}", source="good", **fields)  # type: ignore[arg-type]
        for each in range(number)
    ]


def loaded(served: Served) -> set[str]:
    return {status.name for status in served.registry.statuses() if status.pids}


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - not everything is told
            await asyncio.sleep(0.01)


async def test_more_models_than_may_be_loaded_all_start_and_all_answer(tmp_path: Path) -> None:
    async with limited(tmp_path, 2, max_loaded=1) as served:
        assert {status.state for status in served.registry.statuses()} == {"active"}
        assert served.registry.is_ready
        for name in ("m0", "m1"):
            assert await served.answer("count 3", name) == COUNT_3
            assert loaded(served) == {name}


async def test_requests_for_more_models_than_have_a_place_all_end(tmp_path: Path) -> None:
    async with limited(tmp_path, 2, max_loaded=1) as served:
        names = [f"m{number % 2}" for number in range(6)]
        answers = await asyncio.gather(*(served.answer("count 3", name) for name in names))
        assert answers == [COUNT_3] * 6
        assert len(loaded(served)) == 1


async def test_the_least_recently_used_gives_its_place_and_a_busy_one_never(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, 3, max_loaded=2) as served:
        for name in ("m0", "m1"):
            await served.answer("count 1", name)
        async with served.registry.acquire("m0"):  # the one that was used longer ago
            assert await served.answer("count 3", "m2") == COUNT_3
            assert loaded(served) == {"m0", "m2"}
        await served.answer("count 1", "m0")
        await served.answer("count 1", "m1")
        assert loaded(served) == {"m0", "m1"}


async def test_whoever_waits_for_a_place_gets_it_when_a_busy_one_is_done(tmp_path: Path) -> None:
    async with limited(tmp_path, 2, max_loaded=1) as served:
        async with served.registry.acquire("m0"):
            waiting = asyncio.create_task(served.answer("count 3", "m1"))
            with pytest.raises(DeadlineError):
                await served.answer("count 1", "m1", within=0.1)
            assert loaded(served) == {"m0"}
            assert served.registry.status("m1").phase == "idle"
        assert await waiting == COUNT_3


async def test_a_replaced_version_gives_its_place_before_a_model_that_is_asked_for(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, 2, max_loaded=3) as served:
        await served.registry.load(ModelSpec(name="m0", version=2, source="good"), who="test")
        await served.until(lambda s: s.model_id == "m0@2" and s.state == "ready")
        await served.registry.swap("m0@2", who="test")
        async with served.registry.acquire("m0@1"):
            pass  # so that it is the most recently used
        await served.registry.load(ModelSpec(name="m2", source="good"), who="test")
        await served.until(lambda s: s.name == "m2" and s.state == "active")
        assert served.registry.status("m0@1").phase == "cold"
        assert loaded(served) == {"m0", "m1", "m2"}


async def test_an_idle_version_ends_and_the_next_request_wakes_it(tmp_path: Path) -> None:
    async with limited(tmp_path, 1, max_loaded=1, idle_unload_after=0.3) as served:
        pid = served.pid
        async with served.registry.acquire("m0"):
            await asyncio.sleep(0.6)
            assert is_alive(pid)
        served.seen.clear()
        status = await served.until(lambda s: s.phase == "idle")
        assert not is_alive(pid)
        assert (status.state, status.memory_bytes, status.pids) == ("active", 0, ())
        assert served.registry.is_ready
        answers = await asyncio.gather(*(served.answer("count 3") for _ in range(5)))
        assert answers == [COUNT_3] * 5
        assert served.pid != pid


async def test_readiness_stays_while_an_idle_version_wakes(tmp_path: Path) -> None:
    async with limited(tmp_path, 1, max_loaded=1) as served:
        await sleep(served)
        answer = asyncio.create_task(served.answer("count 3"))
        await served.until(lambda s: s.phase == "reading")
        assert served.registry.is_ready
        assert await served.answer("count 3") == COUNT_3  # who comes now waits as well
        assert await answer == COUNT_3


async def test_waiting_for_a_version_to_wake_is_bounded_in_number_and_time(
    tmp_path: Path,
) -> None:
    engine = EngineConfig(max_queued_requests=2)
    async with limited(tmp_path, 1, max_loaded=1, engine=engine) as served:
        await sleep(served)
        waiting = [asyncio.create_task(served.answer("count 3")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests already wait") as refusal:
            await served.answer("count 3")
        assert refusal.value.retry_after is not None
        assert refusal.value.retry_after > 0
        waiting.pop().cancel()
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError):
            await served.answer("count 3", within=0.01)
        assert await waiting.pop() == COUNT_3


async def test_when_all_who_waited_have_left_the_version_still_wakes(tmp_path: Path) -> None:
    async with limited(tmp_path, 1, max_loaded=1) as served:
        await sleep(served)
        answer = asyncio.create_task(served.answer("count 3"))
        await served.until(lambda s: bool(s.pids))
        answer.cancel()
        await served.until(lambda s: s.is_answering)
        assert await served.answer("count 3") == COUNT_3


async def test_a_wake_that_fails_is_told_and_not_tried_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency_module, "FAILED_PAUSE", 1.0)
    crashing = [ModelSpec(name="m0", source="crash-later")]
    patience = replace(IMPATIENT, max_failed_loads=1)
    async with serving(tmp_path, specs=crashing, patience=patience) as served:
        await sleep(served)
        (tmp_path / MARKER).touch()
        waiting = [asyncio.create_task(served.answer("count 1")) for _ in range(3)]
        for refusal in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(refusal, NotReadyError)
            assert refusal.retry_after is not None
            assert 0 < refusal.retry_after <= 1
        assert not served.registry.is_ready
        (tmp_path / MARKER).unlink()
        served.seen.clear()
        with pytest.raises(NotReadyError, match="could not be loaded again") as again:
            await served.answer("count 1")
        assert not served.seen, "nothing was started"
        assert "SIGKILL" in (served.status.reason or "")
        assert again.value.retry_after is not None
        await asyncio.sleep(again.value.retry_after)
        assert await served.answer("count 3") == COUNT_3
        assert served.status.reason is None
        assert served.registry.is_ready


async def test_who_waits_for_a_name_goes_to_the_version_that_a_swap_gave_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "slow-later") as served:
        await served.registry.load(ModelSpec(name="m0", version=2, source="good"), who="test")
        await served.until(lambda s: s.model_id == "m0@2" and s.state == "ready")
        await sleep(served)
        (tmp_path / SLOW_MARKER).touch()
        answer = asyncio.create_task(served.answer("count 3"))
        await served.until(lambda s: s.model_id == "m0@1" and bool(s.pids))
        await served.registry.swap("m0@2", who="test")
        assert await answer == COUNT_3
        assert not served.registry.status("m0@1").is_answering


async def test_a_failed_wake_that_nobody_waits_for_harms_nobody(tmp_path: Path) -> None:
    crashing = [ModelSpec(name="m0", source="crash-later"), ModelSpec(name="m1", source="good")]
    async with serving(tmp_path, specs=crashing) as served:
        await sleep(served)
        (tmp_path / MARKER).touch()
        with pytest.raises(DeadlineError):
            await served.answer("count 1", within=0.05)
        await served.until(lambda s: s.name == "m0" and s.restarts > 0)
        await served.until(lambda s: s.name == "m0" and not s.pids and s.phase == "idle")
        assert await served.answer("count 3", "m1") == COUNT_3


async def test_a_model_that_is_unloaded_while_it_wakes_is_gone_for_who_waits(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, 1, max_loaded=1) as served:
        await sleep(served)
        answer = asyncio.create_task(served.answer("count 3"))
        await served.until(lambda s: s.phase == "reading")
        await served.registry.unload("m0", who="test")
        with pytest.raises(ModelNotFoundError):
            await answer
        await eventually(lambda: not served.registry.statuses())


async def test_a_wake_comes_after_the_end_that_is_under_way(tmp_path: Path) -> None:
    async with limited(tmp_path, 2, max_loaded=1) as served:
        version = served.registry._catalogue.find("m1")
        ending = asyncio.create_task(served.registry._residency.take_down(version))
        await asyncio.sleep(0)
        assert await served.answer("count 3", "m1") == COUNT_3
        await ending
        assert await served.answer("count 3", "m0") == COUNT_3
        assert loaded(served) == {"m0"}  # the place was counted


async def test_a_closed_server_leaves_nobody_waiting_for_a_place(tmp_path: Path) -> None:
    async with limited(tmp_path, 2, max_loaded=1) as served, served.registry.acquire("m0"):
        waiting = asyncio.create_task(served.answer("count 3", "m1"))
        await asyncio.sleep(0.05)
        await served.registry.close()
        with pytest.raises(HeadraceError, match="shutting down"):
            await waiting


async def sleep(served: Served) -> None:
    """Let the first model end as if nobody had used it for long."""
    await served.registry._residency.take_down(served.registry._catalogue.find("m0"))
    served.seen.clear()
    assert served.registry.status("m0").phase == "idle"
