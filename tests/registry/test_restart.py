"""What a server that starts finds again, after an orderly end and after kill -9."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from headrace.errors import ModelNotFoundError
from headrace.registry.spec import ModelSpec
from registry_to_kill import DECLARED, SECOND, SERVER, WORKERS, database
from scripted_serving import Served, is_alive, serving

COUNT_3 = "0 1 2 "
TO_KILL = Path(__file__).parent.parent / "registry_to_kill.py"


@asynccontextmanager
async def restarted(
    state_dir: Path, *declared: ModelSpec, wait: bool = True, **options: object
) -> AsyncIterator[Served]:
    """Serve what is declared, and what this state folder remembers."""
    async with serving(
        state_dir,
        specs=declared or [DECLARED],
        database_url=database(state_dir),
        server=SERVER,
        wait=wait,
        **options,
    ) as served:
        yield served


def states(served: Served) -> dict[str, str]:
    return {status.model_id: status.state for status in served.registry.statuses()}


async def load(served: Served, spec: ModelSpec) -> None:
    served.seen.clear()
    await served.registry.load(spec, who="test")
    await served.until(
        lambda s: s.model_id == spec.model_id and s.state in ("ready", "active", "failed")
    )
    await noted(served)


async def noted(served: Served) -> None:
    """A load is told of before it is written down, with which it ends."""
    async with asyncio.timeout(30):
        while "running" in [c.outcome for c in await served.registry.history(None, 10)]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def gone(pids: Sequence[int]) -> None:
    async with asyncio.timeout(30):
        while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110 - not our children
            await asyncio.sleep(0.01)


async def kill_at(point: str, state_dir: Path) -> None:
    """Let a server get to this point, kill it with -9, and see that no worker remains."""
    pids = await asyncio.to_thread(_kill_at, point, state_dir)
    assert pids or point == "unloaded"
    await gone(pids)


def _kill_at(point: str, state_dir: Path) -> list[int]:
    command = [sys.executable, str(TO_KILL), str(state_dir), point]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            return _read_pids(process.stdout)
        finally:
            process.kill()


def _read_pids(output: Iterable[str]) -> list[int]:
    (line,) = islice((line for line in output if line.startswith(WORKERS)), 1)
    return [int(pid) for pid in line.split()[1:]]


# An orderly end


async def test_what_was_loaded_and_swapped_comes_back(tmp_path: Path) -> None:
    async with restarted(tmp_path) as served:
        await load(served, SECOND)
        await load(served, replace(SECOND, version=3))
        await served.registry.swap("m0@2", who="test")
        await load(served, ModelSpec(name="other", source="good"))
    async with restarted(tmp_path) as served:
        await served.until(lambda s: s.model_id == "m0@3" and s.state == "ready")
        await served.until(lambda s: s.name == "other" and s.state == "active")
        assert states(served) == {
            "m0@1": "deprecated",
            "m0@2": "active",
            "m0@3": "ready",
            "other@1": "active",
        }
        cold = served.registry.status("m0@1")
        assert (cold.phase, cold.pids) == ("cold", ())
        async with served.registry.acquire("m0") as model:
            assert model.info.model_id == "m0@2"
        back = await served.registry.rollback("m0", who="test")  # loads it
        assert back.active == "m0@1"
        assert await served.answer("count 3") == COUNT_3


async def test_a_changed_declaration_is_the_newer_word(tmp_path: Path) -> None:
    async with restarted(tmp_path) as served:
        await load(served, SECOND)
        await served.registry.swap("m0@2", who="test")
        await load(served, ModelSpec(name="other", source="good"))
    changed = replace(DECLARED, idle_unload_after=3600.0)
    async with restarted(tmp_path, changed) as served:
        await served.until(lambda s: s.name == "other" and s.state == "active")
        assert states(served) == {"m0@1": "active", "other@1": "active"}
        kinds = [change.kind for change in await served.registry.history("m0", 10)]
        assert "swap" in kinds  # the history stays


async def test_a_model_that_is_declared_no_more_is_gone(tmp_path: Path) -> None:
    async with restarted(tmp_path) as served:
        assert states(served) == {"m0@1": "active"}
    async with restarted(tmp_path, ModelSpec(name="n", source="good")) as served:
        assert states(served) == {"n@1": "active"}


async def test_what_was_unloaded_stays_away(tmp_path: Path) -> None:
    declared = [DECLARED, SECOND, ModelSpec(name="n", source="good")]
    async with restarted(tmp_path, *declared) as served:
        await served.registry.unload("m0@1", who="test")
        await served.registry.unload("n", who="test")
        await load(served, ModelSpec(name="p", source="good"))
        await served.registry.unload("p", who="test")
    async with restarted(tmp_path, *declared) as served:
        assert states(served) == {"m0@2": "active"}
        for name in ("n", "p"):
            with pytest.raises(ModelNotFoundError):
                await served.answer("count 1", name)
            with pytest.raises(ModelNotFoundError):
                await served.registry.unload(name, who="test")
        await load(served, ModelSpec(name="n", source="good", version=7))
        assert states(served)["n@7"] == "active"
    async with restarted(tmp_path, *declared) as served:
        assert states(served) == {"m0@2": "active", "n@7": "active"}


async def test_a_version_that_failed_at_run_time_comes_back_failed_with_its_reason(
    tmp_path: Path,
) -> None:
    reason = "/models/missing.gguf: no such file"
    async with restarted(tmp_path) as served:
        await load(served, replace(SECOND, source="missing"))
    async with restarted(tmp_path) as served:
        status = served.registry.status("m0@2")
        assert (status.state, status.reason, status.pids) == ("failed", reason, ())
        assert not any(each.pids for each in served.seen if each.model_id == "m0@2")
        await load(served, SECOND)
        assert states(served) == {"m0@1": "active", "m0@2": "ready"}


CRASHING = replace(SECOND, source="crash-later")


async def swap_to_what_will_crash(tmp_path: Path, *others: ModelSpec) -> None:
    async with restarted(tmp_path) as served:
        for spec in (*others, CRASHING):
            await load(served, spec)
        await served.registry.swap("m0@2", who="test")
    (tmp_path / "crash-now").touch()


async def test_an_active_version_that_no_longer_loads_gives_way_to_one_that_is_ready(
    tmp_path: Path,
) -> None:
    await swap_to_what_will_crash(tmp_path, replace(SECOND, version=3))
    async with restarted(tmp_path) as served:
        await served.until(lambda s: s.model_id == "m0@3" and s.state == "active")
        assert states(served) == {"m0@1": "deprecated", "m0@2": "failed", "m0@3": "active"}
        assert await served.answer("count 3") == COUNT_3


async def test_an_active_version_that_no_longer_loads_gives_way_to_the_one_before(
    tmp_path: Path,
) -> None:
    await swap_to_what_will_crash(tmp_path)
    async with restarted(tmp_path) as served:
        await served.until(lambda s: s.model_id == "m0@1" and s.state == "active")
        assert states(served) == {"m0@1": "active", "m0@2": "failed"}
        assert await served.answer("count 3") == COUNT_3
    async with restarted(tmp_path) as served:  # and it is still known that it failed
        status = served.registry.status("m0@2")
        assert (status.state, status.pids) == ("failed", ())
        assert "SIGKILL" in (status.reason or "")
        assert served.registry.status("m0").model_id == "m0@1"


async def test_a_version_that_failed_as_declared_and_is_loaded_anew_comes_back(
    tmp_path: Path,
) -> None:
    declared = replace(DECLARED, source="crash-later")
    marker = tmp_path / "crash-now"
    marker.touch()
    async with restarted(tmp_path, declared, wait=False) as served:
        await served.until(lambda s: s.state == "failed")
        await noted(served)
        await load(served, DECLARED)
        await served.until(lambda s: s.state == "active")
        await noted(served)
    async with restarted(tmp_path, declared) as served:
        assert states(served) == {"m0@1": "active"}
        assert await served.answer("count 3") == COUNT_3


# kill -9


async def test_killed_while_a_version_loads_it_is_loaded_again(tmp_path: Path) -> None:
    await kill_at("loading", tmp_path)
    async with restarted(tmp_path) as served:
        await served.until(lambda s: s.model_id == "m0@2" and s.phase == "reading")
        assert states(served) == {"m0@1": "active", "m0@2": "loading"}
        assert await served.answer("count 3") == COUNT_3


async def test_killed_after_a_swap_was_answered_the_new_version_is_active(
    tmp_path: Path,
) -> None:
    await kill_at("swapped", tmp_path)
    async with restarted(tmp_path) as served:
        assert states(served) == {"m0@1": "deprecated", "m0@2": "active"}
        newest = (await served.registry.history("m0", 1))[0]
        assert (newest.kind, newest.active, newest.outcome) == ("swap", "m0@2", "done")


async def test_killed_amid_replace_the_old_version_is_active_and_the_only_one(
    tmp_path: Path,
) -> None:
    await kill_at("replacing", tmp_path)
    async with restarted(tmp_path) as served:
        assert states(served) == {"m0@1": "active"}  # memory cannot hold both
        assert await served.answer("count 3") == COUNT_3
        newest = (await served.registry.history("m0", 1))[0]
        assert (newest.kind, newest.outcome) == ("replace", "undone")


async def test_killed_amid_unload_the_version_stays_away(tmp_path: Path) -> None:
    await kill_at("unloading", tmp_path)
    async with restarted(tmp_path) as served:
        assert states(served) == {"m0@1": "active"}
        assert await served.answer("count 3") == COUNT_3


async def test_killed_right_after_a_model_was_unloaded_it_stays_away(tmp_path: Path) -> None:
    await kill_at("unloaded", tmp_path)
    async with restarted(tmp_path) as served:
        assert states(served) == {}
        assert not served.registry.is_ready
