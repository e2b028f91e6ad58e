"""What is promised to whom, on versions that are not real; then a wake that cannot fit."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from headrace.errors import InsufficientMemoryError, ModelFileError, NotReadyError
from headrace.registry.changes import memory as memory_module
from headrace.registry.changes.memory import MemoryBook
from headrace.registry.residency import Residency
from headrace.registry.spec import ModelSpec
from headrace.registry.version import Version
from scripted_serving import serving

COUNT_3 = "0 1 2 "
HUGE = 1 << 60


class FakeVersion:
    """Takes `size` of the memory while it is up."""

    def __init__(self, number: int, size: int, *, state: str = "deprecated") -> None:
        self.spec = ModelSpec(name="m", version=number, source="fake")
        self.model_id = self.spec.model_id
        self.state = state
        self.measured: int | None = None
        self.last_used = float(number)
        self.mapped_bytes = 0
        self.footprint = 0
        self.is_idle = False
        self.fails = False
        self._size = size

    @property
    def is_proven(self) -> bool:
        return self.is_idle

    async def bring_up(self) -> None:
        if self.fails:
            raise ModelFileError("cut short")
        self.footprint, self.is_idle = self._size, True

    def take_down(self, _drain_timeout: float) -> asyncio.Task[None]:
        self.measured, self.footprint = self.footprint or self.measured, 0
        self.is_idle = False
        return asyncio.create_task(asyncio.sleep(0))

    async def ended(self) -> None:
        pass


class Machine:
    """Holds 100 bytes; versions are as large as is said of their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: list[FakeVersion] = []
        self.sizes: dict[int, int | None] = {}
        self.residency = Residency(None)
        versions = cast("Callable[[], list[Version]]", lambda: self.versions)
        self.book = MemoryBook(self._needed, versions, self.residency)
        monkeypatch.setattr(memory_module, "available_memory", self._available)

    def version(self, size: int, *, state: str = "deprecated", told: bool = True) -> FakeVersion:
        version = FakeVersion(len(self.versions) + 1, size, state=state)
        self.sizes[version.spec.version] = size if told else None
        self.versions.append(version)
        return version

    async def bring_up(self, version: FakeVersion) -> None:
        await self.residency.bring_up(cast("Version", version))

    async def take_down(self, version: FakeVersion) -> None:
        await self.residency.take_down(cast("Version", version))

    async def admit(self, version: FakeVersion) -> None:
        await self.book.admit(cast("Version", version))

    def settle(self, version: FakeVersion) -> None:
        self.book.settle(cast("Version", version))

    async def require_instead(self, version: FakeVersion, old: FakeVersion) -> None:
        await self.book.require_instead(cast("Version", version), cast("Version", old))

    def _available(self) -> int:
        return 100 - sum(version.footprint for version in self.versions)

    def _needed(self, spec: ModelSpec) -> int | None:
        if (size := self.sizes[spec.version]) is not None and size >= HUGE:
            raise ModelFileError("no such file")
        return size


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("state", ["ready", "active", "deprecated"])
async def test_a_version_that_comes_back_is_admitted_like_one_that_is_new(
    machine: Machine, state: str
) -> None:
    await machine.bring_up(machine.version(60, state="active"))
    again = machine.version(60, state=state)
    with pytest.raises(InsufficientMemoryError, match="m@2 needs about 60 bytes"):
        await machine.bring_up(again)
    assert not again.footprint


async def test_the_first_load_is_not_asked_for_twice(machine: Machine) -> None:
    first = machine.version(60, state="loading")
    machine.sizes[1] = 101
    await machine.bring_up(first)
    assert first.footprint == 60


async def test_what_its_workers_measured_counts_more_than_what_its_files_say(
    machine: Machine,
) -> None:
    version = machine.version(60)
    await machine.bring_up(version)
    await machine.take_down(version)
    machine.sizes[1] = HUGE
    await machine.bring_up(version)
    await machine.take_down(version)
    version.measured, machine.sizes[1] = 101, 1
    with pytest.raises(InsufficientMemoryError, match="101 bytes"):
        await machine.bring_up(version)


async def test_a_promise_is_made_once_and_ends_when_it_is_settled(machine: Machine) -> None:
    first, second = machine.version(60), machine.version(60)
    await machine.admit(first)
    await machine.admit(first)
    with pytest.raises(InsufficientMemoryError, match="40 bytes is available"):
        await machine.admit(second)
    machine.settle(first)
    await machine.admit(second)


@pytest.mark.parametrize("fails", [True, False])
async def test_nothing_stays_promised_once_a_version_is_back_or_failed(
    machine: Machine, *, fails: bool
) -> None:
    first, second = machine.version(60), machine.version(100)
    first.fails = fails
    if fails:
        with pytest.raises(ModelFileError):
            await machine.bring_up(first)
    else:
        await machine.bring_up(first)
        await machine.take_down(first)
    await machine.admit(second)


async def test_a_version_without_workers_needs_no_memory(machine: Machine) -> None:
    full, remote = machine.version(100), machine.version(100)
    await machine.bring_up(full)
    remote.spec = replace(remote.spec, source="https://host/v1")
    machine.sizes[2] = HUGE  # it would raise if it was sized
    await machine.admit(remote)
    await machine.require_instead(remote, full)
    assert full.footprint == 100


async def test_two_that_come_back_at_once_are_not_promised_the_same_memory(
    machine: Machine,
) -> None:
    each = [machine.version(60, state="active") for _ in range(2)]
    results = await asyncio.gather(*map(machine.bring_up, each), return_exceptions=True)
    assert sum(isinstance(result, InsufficientMemoryError) for result in results) == 1


async def test_replaced_ones_give_theirs_only_where_that_is_enough(machine: Machine) -> None:
    replaced = [machine.version(40) for _ in range(2)]
    for version in replaced:
        await machine.bring_up(version)
    with pytest.raises(InsufficientMemoryError):
        await machine.admit(machine.version(101))
    assert all(version.footprint for version in replaced)
    await machine.admit(machine.version(60))
    assert [version.footprint for version in replaced] == [0, 40]


async def test_one_in_place_of_another_may_have_what_that_holds(machine: Machine) -> None:
    old = machine.version(60, state="active")
    await machine.bring_up(old)
    await machine.require_instead(machine.version(100, state="loading"), old)
    await machine.require_instead(machine.version(200, state="loading", told=False), old)
    with pytest.raises(InsufficientMemoryError, match="101 bytes of memory and 100 bytes is"):
        await machine.require_instead(machine.version(101, state="loading"), old)
    with pytest.raises(ModelFileError):
        await machine.require_instead(machine.version(HUGE, state="loading"), old)
    await machine.admit(machine.version(40))  # nothing was promised


# Real workers


async def test_a_request_that_cannot_wake_a_version_for_lack_of_memory_is_told_when_to_retry(
    tmp_path: Path,
) -> None:
    sizes = [0]
    async with serving(tmp_path, sizes=lambda _: sizes[0]) as served:
        version = served.registry._catalogue.find("m0")
        await served.registry._residency.take_down(version)
        version.measured, sizes[0] = None, HUGE
        with pytest.raises(NotReadyError) as refusal:
            await served.answer("count 1")
        assert refusal.value.status == 503
        assert refusal.value.retry_after is not None
        assert refusal.value.retry_after > 0
        assert "needs about" in (served.status.reason or "")
        sizes[0] = 0
        served.registry._residency._not_before.clear()
        assert await served.answer("count 3") == COUNT_3
        assert served.status.reason is None


async def test_a_version_remembers_what_its_workers_held(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        version = served.registry._catalogue.find("m0")
        async with asyncio.timeout(30):
            while not version.footprint:  # noqa: ASYNC110 - heartbeats tell nobody
                await asyncio.sleep(0.01)
        await served.registry._residency.take_down(version)
        assert version.measured is not None
        assert 1 << 20 < version.measured < 1 << 30
        assert version.footprint == 0
