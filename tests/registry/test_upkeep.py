"""What is done unasked, on versions that are not real; the ticks are."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.registry.health.probe import Probe
from headrace.registry.health.score import Health
from headrace.registry.spec import ModelSpec
from headrace.registry.upkeep import Upkeep
from headrace.registry.workers.patience import Patience

WELL = Probe(is_alive=True, seconds=0.1)
HUNG = Probe(is_alive=False, seconds=1.0, reason="did not answer within 1 s")
LONG_AGO = -1e6  # monotonic
OFTEN = Patience(tick=0.001, between_probes=60.0)


class FakeVersion:
    """Finds in its probes what it is told to, and says when it has been probed."""

    def __init__(self, name: str = "m", **fields: object) -> None:
        self.spec = ModelSpec(name=name, source="fake", **fields)  # type: ignore[arg-type]
        self.model_id = self.spec.model_id
        self.state = "active"
        self.is_proven = self.is_idle = True
        self.checked_at = self.last_used = time.monotonic()
        self.health = Health()
        self.finds: Probe | Exception | None = WELL
        self.num_probes = 0

    async def check_health(self) -> Probe | None:
        self.num_probes += 1
        self.checked_at = time.monotonic()
        if isinstance(self.finds, Exception):
            raise self.finds
        return self.finds


class FakeResidency:
    def __init__(self) -> None:
        self.taken_down: list[FakeVersion] = []
        self.tried_again: list[FakeVersion] = []

    async def end_idle(self, version: FakeVersion) -> None:
        version.is_proven = version.is_idle = False
        self.taken_down.append(version)

    async def try_again(self, version: FakeVersion) -> None:
        self.tried_again.append(version)


class FakeJournal:
    is_writable = True


class BrokenJournal:
    """Cannot be written, nor asked."""

    is_writable = False
    num_asked = 0

    async def look_again(self) -> None:
        self.num_asked += 1
        raise ZeroDivisionError


@asynccontextmanager
async def kept(
    *versions: FakeVersion, journal: object | None = None
) -> AsyncIterator[FakeResidency]:
    residency = FakeResidency()
    parts = cast("Any", (lambda: versions, residency, journal or FakeJournal()))
    upkeep = Upkeep(OFTEN, *parts)
    upkeep.start()
    try:
        yield residency
    finally:
        await upkeep.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_a_version_that_nobody_uses_is_probed_now_and_then() -> None:
    version = FakeVersion()
    version.checked_at = version.last_used = LONG_AGO
    async with kept(version) as residency:
        await eventually(lambda: bool(residency.tried_again))  # ticks go on
    assert version.num_probes == 1


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_version_in_use_is_not_probed_while_it_is_well(*, is_idle: bool) -> None:
    version = FakeVersion()
    version.checked_at, version.is_idle = LONG_AGO, is_idle
    async with kept(version) as residency:
        await eventually(lambda: len(residency.tried_again) > 1)
    assert version.num_probes == 0


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_probe_that_found_no_answer_is_repeated_though_requests_come(
    *, is_idle: bool
) -> None:
    version = FakeVersion()
    version.health.note_probe(HUNG, 0.0)
    version.checked_at, version.is_idle = LONG_AGO, is_idle
    async with kept(version):
        await eventually(lambda: version.num_probes == 1)


async def test_a_version_without_workers_is_not_probed() -> None:
    version = FakeVersion()
    version.health.note_probe(HUNG, 0.0)
    version.checked_at, version.is_proven, version.is_idle = LONG_AGO, False, False
    async with kept(version) as residency:
        await eventually(lambda: bool(residency.tried_again))
    assert version.num_probes == 0


@pytest.mark.parametrize(("finds", "is_told"), [(HUNG, True), (WELL, False), (None, False)])
async def test_a_probe_without_an_answer_is_told_but_not_one_cut_by_a_take_down(
    finds: Probe | None, *, is_told: bool
) -> None:
    version = FakeVersion()
    version.finds, version.checked_at, version.last_used = finds, LONG_AGO, LONG_AGO
    with capture_logs() as logs:
        async with kept(version) as residency:
            await eventually(lambda: bool(residency.tried_again))
    assert version.num_probes == 1
    assert [each["event"] for each in logs] == ["model.unhealthy"] * is_told


async def test_a_visit_that_breaks_is_told_and_the_next_one_comes() -> None:
    broken, other = FakeVersion("broken"), FakeVersion("other", idle_unload_after=1.0)
    broken.finds, broken.checked_at, broken.last_used = ZeroDivisionError(), LONG_AGO, LONG_AGO
    with capture_logs() as logs:
        async with kept(broken, other) as residency:
            await eventually(lambda: broken in residency.tried_again)
            other.last_used = LONG_AGO
            await eventually(lambda: residency.taken_down == [other])
    assert ("upkeep.broke", "broken@1") in [(each["event"], each.get("model")) for each in logs]


async def test_a_journal_that_breaks_does_not_end_the_upkeep() -> None:
    journal = BrokenJournal()
    with capture_logs() as logs:
        async with kept(journal=journal):
            await eventually(lambda: journal.num_asked > 1)
    assert {each["event"] for each in logs} == {"upkeep.broke"}


async def test_what_was_replaced_is_not_tried_again_unasked() -> None:
    replaced, active = FakeVersion("a"), FakeVersion("b")
    replaced.state = "deprecated"
    async with kept(replaced, active) as residency:
        await eventually(lambda: len(residency.tried_again) > 2)
    assert set(residency.tried_again) == {active}
