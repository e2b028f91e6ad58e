"""Swaps and rollbacks to versions that have no workers, or are still on their way."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from headrace.errors import ConflictError, DeadlineError, HeadraceError, ModelNotFoundError
from scripted_serving import Served, eventually, load, serving, spec
from scripted_worker import MARKER

COUNT_3 = "0 1 2 "


async def outcomes(served: Served) -> list[tuple[str, str]]:
    return [(each.kind, each.outcome) for each in await served.registry.history("m0", 10)]


async def test_a_swap_loads_a_version_first_that_nobody_has_used(served: Served) -> None:
    await load(served, 2, idle_unload_after=0.2)
    await eventually(lambda: served.registry.status("m0@2").phase == "idle")
    assert served.registry.safety("m0@2").safe
    swap = await served.registry.swap("m0@2", who="test")
    assert (swap.previous, swap.active) == ("m0@1", "m0@2")
    assert swap.seconds > 0.01
    assert await outcomes(served) == [("swap", "done"), ("load", "done")]
    assert await served.answer("count 3") == COUNT_3


async def test_a_swap_takes_the_place_of_the_version_that_it_replaces(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loaded_models=1) as served:
        await load(served, 2)
        assert await served.answer("count 3") == COUNT_3  # of the first, which takes its place back
        assert served.registry.status("m0@2").phase == "idle"
        await served.registry.swap("m0@2", who="test")
        assert served.registry.status("m0@1").phase == "cold"


async def test_a_swap_that_cannot_load_its_version_fails_and_moves_nothing(
    served: Served, tmp_path: Path
) -> None:
    await load(served, 2, "crash-later", idle_unload_after=0.2)
    await eventually(lambda: served.registry.status("m0@2").phase == "idle")
    (tmp_path / MARKER).touch()
    with pytest.raises(HeadraceError):
        await served.registry.swap("m0@2", who="test")
    assert (await outcomes(served))[0] == ("swap", "failed")
    assert served.registry.status("m0").model_id == "m0@1"
    assert await served.answer("count 3") == COUNT_3


async def test_a_rollback_is_in_the_history_while_it_loads_and_when_it_has_failed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, specs=[spec(1, "crash-later", retain="cold")]) as served:
        await load(served, 2)
        await served.registry.swap("m0@2", who="test")
        await eventually(lambda: served.registry.status("m0@1").phase == "cold")
        (tmp_path / MARKER).touch()
        served.seen.clear()
        rolling = asyncio.create_task(served.registry.rollback("m0", who="test"))
        await served.until(lambda s: s.version == 1 and s.phase == "starting")
        assert (await outcomes(served))[0] == ("rollback", "running")
        with pytest.raises(HeadraceError):
            await rolling
        assert (await outcomes(served))[0] == ("rollback", "failed")
        assert served.registry.status("m0").model_id == "m0@2"


async def test_a_rollback_waits_for_a_place_no_longer_than_its_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, max_loaded_models=1) as served:
        await load(served, 2)
        await served.registry.swap("m0@2", who="test")
        async with served.registry.acquire("m0"):
            with pytest.raises(DeadlineError):
                await served.registry.rollback("m0", who="test", deadline=time.monotonic() + 0.1)
            assert (await outcomes(served))[0] == ("rollback", "failed")
        back = await served.registry.rollback("m0", who="test", deadline=time.monotonic() + 30)
        assert back.active == "m0@1"


async def test_a_version_that_is_brought_back_is_not_ended_because_it_was_replaced(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, specs=[spec(1, "crash-later", retain="cold")]) as served:
        await load(served, 2)
        version = served.registry._catalogue.find("m0@1")
        async with served.registry.acquire("m0@1"):
            await served.registry.swap("m0@2", who="test")
            (tmp_path / MARKER).touch()
            os.kill(served.pid, signal.SIGKILL)
            await eventually(lambda: version.refusal is not None)
            (tmp_path / MARKER).unlink()
            rolling = asyncio.create_task(served.registry.rollback("m0", who="test"))
            served.seen.clear()
            await served.until(lambda s: s.version == 1 and s.phase == "starting")
        # Its last lease has ended, and its workers are on their way up.
        assert (await rolling).active == "m0@1"
        assert await served.answer("count 3") == COUNT_3


async def test_a_version_that_was_replaced_while_it_loaded_can_be_returned_to(
    tmp_path: Path,
) -> None:
    specs = [spec(1), spec(2, "slow-load 0.5")]
    async with serving(tmp_path, specs=specs, wait=False) as served:
        await served.until(lambda s: s.version == 1 and s.state == "ready")
        swap = await served.registry.swap("m0@1", who="test")
        assert swap.previous == "m0@2"
        with pytest.raises(ConflictError, match="no version to roll back to, m0@2 is"):
            await served.registry.rollback("m0", who="test")
        await served.until(lambda s: s.version == 2 and s.state == "ready")
        back = await served.registry.rollback("m0", who="test")
        assert (back.previous, back.active) == ("m0@1", "m0@2")


async def test_a_request_that_wakes_the_old_version_goes_to_the_new_one_after_a_swap(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, max_loaded_models=1) as served:
        await load(served, 2)
        assert served.status.phase == "idle"
        async with served.registry.acquire("m0@2"):
            answer = asyncio.create_task(served.answer("count 3"))  # waits for a place
            await asyncio.sleep(0)
            await served.registry.swap("m0@2", who="test")
            assert await answer == COUNT_3


async def test_a_swap_loads_a_cold_version_again_also_one_of_long_ago(served: Served) -> None:
    for version in (2, 3):
        await load(served, version, retain="cold")
        await served.registry.swap(f"m0@{version}", who="test")
    await served.registry.unload("m0@1", who="test")
    await load(served, 4)
    await served.registry.swap("m0@4", who="test")
    await eventually(lambda: served.registry.status("m0@2").phase == "cold")
    with pytest.raises(ModelNotFoundError, match="was replaced and is not in memory"):
        await served.answer("count 1", "m0@2")
    assert served.registry.safety("m0@2").safe
    swap = await served.registry.swap("m0@2", who="test")
    assert (swap.previous, swap.active) == ("m0@4", "m0@2")
    assert await served.answer("count 3") == COUNT_3


async def test_a_number_is_free_again_when_its_version_has_ended(served: Served) -> None:
    async with served.registry.acquire("m0"):
        await served.registry.unload("m0", who="test")
        with pytest.raises(ConflictError, match="still being unloaded"):
            await load(served, 1)
    await eventually(lambda: not served.registry.statuses())
    await load(served, 1)
    assert await served.answer("count 3") == COUNT_3
