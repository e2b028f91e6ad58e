"""Replicas, health, memory, and changes that meet each other or the end of the server."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import (
    ConflictError,
    DeadlineError,
    DrainingError,
    HeadraceError,
    InsufficientMemoryError,
    ModelNotFoundError,
)
from headrace.registry.changes import memory
from headrace.registry.changes.pointer import Swap
from headrace.registry.changes.safety import SafetyReport, UnsafeSwapError
from headrace.registry.spec import GoldenCase
from headrace.registry.storage.store import Store
from headrace.registry.workers import replicas
from scripted_serving import IMPATIENT, Served, eventually, is_alive, load, serving, spec, states
from scripted_worker import SLOW_MARKER

COUNT_3 = "0 1 2 "
PROBING = replace(
    IMPATIENT, probe=0.5, between_probes=0.1, standstill=60.0, standstill_at_first=60.0
)
GIB = 1 << 30
MIB = 1 << 20


async def begin_to_load(served: Served, version: int, source: str = "slow") -> None:
    await served.registry.load(spec(version, source), who="test")
    await served.until(lambda s: s.version == version and s.phase == "reading")


# Replicas


async def test_requests_are_spread_over_replicas(tmp_path: Path) -> None:
    async with serving(tmp_path, specs=[spec(1, replicas=3)]) as served:
        assert len(set(served.status.pids)) == 3
        models = served.registry._catalogue.find("m0")._replicas.models
        answers = [asyncio.create_task(served.answer("count 100")) for _ in range(6)]
        await eventually(lambda: [model.num_in_flight for model in models] == [2, 2, 2])
        assert len(set(await asyncio.gather(*answers))) == 1
        assert served.status.num_leases == 0


async def test_when_a_replica_dies_the_others_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, specs=[spec(1, replicas=2)]) as served:
        dies, stays = served.status.pids
        os.kill(dies, signal.SIGKILL)
        await served.until(lambda s: s.restarts == 1)
        assert served.status.is_answering
        assert served.registry.is_ready
        assert served.status.state == "active"
        answers = await asyncio.gather(*(served.answer("count 3") for _ in range(10)))
        assert answers == [COUNT_3] * 10
        await eventually(lambda: len(served.status.pids) == 2)
        assert stays in served.status.pids
        assert dies not in served.status.pids


async def test_a_replica_that_cannot_be_loaded_fails_the_version_and_ends_the_others(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, specs=[spec(1, "broken", replicas=3)], wait=False) as served:
        with pytest.raises(HeadraceError, match="out of cheese"):
            await served.registry.loaded()
        assert (served.status.state, served.status.pids) == ("failed", ())


# Health


async def test_a_version_that_never_answers_its_probe_fails_its_load(tmp_path: Path) -> None:
    async with serving(tmp_path, patience=PROBING) as served:
        await load(served, 2, "hang")
        status = served.registry.status("m0@2")
        assert (status.state, status.pids) == ("failed", ())
        assert "did not answer within 0.5 s" in (status.reason or "")
        assert states(served)["m0@1"] == "active"
        assert await served.answer("count 3") == COUNT_3


async def test_golden_cases_decide_whether_a_version_gets_ready(served: Served) -> None:
    golden = (GoldenCase(prompt="count 3", expected="0 1 2"),)
    await load(served, 2, "wrong", golden=golden)
    await load(served, 3, golden=golden)
    assert states(served) == {"m0@1": "active", "m0@2": "failed", "m0@3": "ready"}
    reason = served.registry.status("m0@2").reason or ""
    assert "expected '0 1 2', answered '1 2 3 '" in reason


async def test_a_golden_case_in_five_may_fail(served: Served) -> None:
    good = [GoldenCase(prompt=f"count {n}", expected=f"{n - 1} ") for n in range(1, 5)]
    await load(served, 2, golden=(*good, GoldenCase(prompt="count 1", expected="seven")))
    assert served.registry.status("m0@2").health_score == pytest.approx(0.8)
    await served.registry.swap("m0@2", who="test")


async def test_a_version_that_stops_answering_loses_its_score_and_is_not_swapped_to(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, patience=PROBING) as served:
        await load(served, 2)
        with pytest.raises(DeadlineError):
            await served.answer("hang", "m0@2", deadline=time.monotonic() + 0.1)
        await served.until(lambda s: s.version == 2 and s.health_score == 0)
        with pytest.raises(UnsafeSwapError, match="health_score") as refusal:
            await served.registry.swap("m0@2", who="test")
        assert failed(refusal.value.report) == ["health_score"]
        assert await served.answer("count 3") == COUNT_3


async def test_a_version_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    patience = replace(PROBING, probe=60.0)
    idle = spec(1, name="m1", idle_unload_after=0.5)
    async with serving(tmp_path, specs=[spec(1), idle], patience=patience) as served:
        with pytest.raises(DeadlineError):
            await served.answer("hang", "m0", deadline=time.monotonic() + 0.1)
        await served.answer("count 1", "m1")
        served.seen.clear()
        await served.until(lambda s: s.name == "m1" and s.phase == "idle")


async def test_a_burst_of_faults_blocks_a_swap(served: Served) -> None:
    await load(served, 2)
    for _ in range(6):
        with pytest.raises(HeadraceError):
            await served.answer("bug", "m0@2")
    score = served.registry.status("m0@2").health_score
    assert score is not None
    assert score < 0.8
    with pytest.raises(UnsafeSwapError, match="6 of the last 6 requests failed"):
        await served.registry.swap("m0@2", who="test")


async def test_an_idle_version_keeps_its_score(tmp_path: Path) -> None:
    async with serving(tmp_path, patience=PROBING) as served:
        registry = served.registry
        await registry._residency.take_down(registry._catalogue.find("m0"))
        await asyncio.sleep(0.3)
        assert served.status.health_score == 1


# Safety


def failed(report: SafetyReport) -> list[str]:
    return [check.name for check in report.checks if not check.passed]


async def test_each_check_of_the_safety_report_sees_what_it_is_named_after(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = served.registry
    await load(served, 2)
    report = registry.safety("m0@2")
    assert report.safe
    assert [check.name for check in report.checks] == [
        "exists_and_ready",
        "no_concurrent_operation",
        "system_healthy",
        "health_score",
        "not_already_active",
    ]
    assert failed(registry.safety("m0@1")) == ["not_already_active"]
    await begin_to_load(served, 3)
    assert failed(registry.safety("m0@3")) == ["exists_and_ready", "health_score"]
    with pytest.raises(ModelNotFoundError):
        registry.safety("m0@9")
    replacing = asyncio.create_task(registry.replace(spec(4, "slow-load 0.3"), who="test"))
    await served.until(lambda s: s.version == 4)
    assert failed(registry.safety("m0@2")) == ["no_concurrent_operation"]
    await replacing
    monkeypatch.setattr(Store, "history", fail)
    with pytest.raises(HeadraceError):
        await registry.history(None, 1)
    assert failed(registry.safety("m0@2")) == ["system_healthy"]
    monkeypatch.undo()
    await eventually(lambda: registry.safety("m0@2").safe)  # by itself
    await registry.drain(0)
    assert failed(registry.safety("m0@2")) == ["system_healthy"]
    with pytest.raises(DrainingError):
        await registry.swap("m0@2", who="test")


# Changes that meet


def fail(*_arguments: object, **_fields: object) -> None:
    raise HeadraceError("the disk is full")


async def test_of_changes_of_one_model_at_once_exactly_one_wins(served: Served) -> None:
    await load(served, 2)
    await load(served, 3)
    registry = served.registry
    results = await asyncio.gather(
        registry.swap("m0@3", who="a"),
        registry.swap("m0@2", who="b"),
        registry.rollback("m0", who="c"),
        registry.unload("m0@2", who="d"),
        registry.load(spec(4), who="e"),
        registry.replace(spec(5), who="f"),
        registry.unload("m0", who="g"),
        return_exceptions=True,
    )
    assert isinstance(results[0], Swap)
    for lost in results[1:]:
        assert isinstance(lost, ConflictError)
        assert "another change is running (swap)" in lost.message
    assert states(served) == {"m0@1": "deprecated", "m0@2": "ready", "m0@3": "active"}


async def test_of_loads_of_one_version_at_once_one_wins(served: Served) -> None:
    loads = (served.registry.load(spec(1, name="new"), who="test") for _ in range(5))
    results = await asyncio.gather(*loads, return_exceptions=True)
    assert sum(isinstance(result, ConflictError) for result in results) == 4
    await served.until(lambda s: s.name == "new" and s.state == "active")
    assert await served.answer("count 3", "new") == COUNT_3


async def test_different_models_change_side_by_side(tmp_path: Path) -> None:
    async with serving(tmp_path, "good", "good") as served:
        await served.registry.load(spec(2, name="m1"), who="test")
        await served.until(lambda s: s.model_id == "m1@2" and s.state == "ready")
        replacing = asyncio.create_task(served.registry.replace(spec(2, "slow"), who="test"))
        await served.until(lambda s: s.model_id == "m0@2" and s.phase == "reading")
        await served.registry.swap("m1@2", who="test")
        await served.registry.rollback("m1", who="test")
        assert await served.answer("count 3", "m1") == COUNT_3
        assert not replacing.done()
        await served.registry.close()
        await asyncio.wait([replacing])


async def test_a_swap_that_is_not_written_down_moves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load(served, 2)
    monkeypatch.setattr(Store, "move", fail)
    with pytest.raises(HeadraceError, match="the disk is full"):
        await served.registry.swap("m0@2", who="test")
    assert states(served) == {"m0@1": "active", "m0@2": "ready"}
    async with served.registry.acquire("m0") as model:
        assert model.info.model_id == "m0@1"
    assert served.registry.status("m0@2").health_score == 1  # it is no fault of the version
    monkeypatch.undo()
    await eventually(lambda: served.registry.safety("m0@2").safe)
    await served.registry.swap("m0@2", who="test")
    assert states(served) == {"m0@1": "deprecated", "m0@2": "active"}


async def test_a_replace_that_is_not_written_down_brings_the_old_version_back_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "activate", fail)
    with pytest.raises(HeadraceError, match="the disk is full"):
        await served.registry.replace(spec(2), who="test")
    assert await served.answer("count 3") == COUNT_3
    assert served.registry.status("m0").model_id == "m0@1"
    assert states(served) == {"m0@1": "active"}
    newest = (await served.registry.history("m0", 1))[0]
    assert (newest.kind, newest.outcome, newest.detail) == ("replace", "failed", "the disk is full")


@pytest.mark.parametrize("write", ["remove_version", "save_version"])
async def test_an_unload_or_a_load_that_is_not_written_down_does_nothing_and_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    await load(served, 2)
    monkeypatch.setattr(Store, write, fail)
    with pytest.raises(HeadraceError, match="the disk is full"):
        await (
            served.registry.unload("m0@2", who="test")
            if write == "remove_version"
            else served.registry.load(spec(3), who="test")
        )
    assert states(served) == {"m0@1": "active", "m0@2": "ready"}
    newest = (await served.registry.history("m0", 1))[0]
    assert (newest.outcome, newest.detail) == ("failed", "the disk is full")
    monkeypatch.undo()
    await load(served, 3)


async def test_a_client_that_leaves_amid_a_change_leaves_nothing_half_done(
    served: Served,
) -> None:
    registry = served.registry
    replacing = asyncio.create_task(registry.replace(spec(2, "slow-load 0.3"), who="test"))
    await served.until(lambda s: s.version == 2 and s.phase == "reading")
    replacing.cancel()
    await served.until(lambda s: s.version == 2 and s.state == "active")
    assert states(served) == {"m0@1": "deprecated", "m0@2": "active"}
    rolling = asyncio.create_task(registry.rollback("m0", who="test"))  # from cold
    await asyncio.sleep(0.05)
    rolling.cancel()
    served.seen.clear()
    await served.until(lambda s: s.version == 1 and s.state == "active")
    assert states(served) == {"m0@1": "active", "m0@2": "deprecated"}
    outcomes = [change.outcome for change in await registry.history("m0", 2)]
    assert outcomes == ["done", "done"]
    loading = asyncio.create_task(registry.load(spec(3), who="test"))
    await asyncio.sleep(0)
    loading.cancel()
    await served.until(lambda s: s.version == 3 and s.state == "ready")


async def test_an_unload_amid_a_load_ends_both_changes_and_the_worker(served: Served) -> None:
    await begin_to_load(served, 2)
    (pid,) = served.registry.status("m0@2").pids
    await served.registry.unload("m0@2", who="test")
    await eventually(lambda: "m0@2" not in states(served))
    assert not is_alive(pid)
    await asyncio.sleep(0)
    unload, load_ = await served.registry.history("m0", 2)
    assert (load_.kind, load_.outcome) == ("load", "undone")
    assert unload.kind == "unload"
    await load(served, 2)


async def test_a_version_may_be_swapped_to_at_the_moment_when_it_is_told_ready(
    served: Served,
) -> None:
    for version in range(2, 5):
        await load(served, version)
        await served.registry.swap(f"m0@{version}", who="test")
    assert served.registry.status("m0").version == 4


async def test_two_rollbacks_lead_back_also_when_nothing_is_kept_warm(tmp_path: Path) -> None:
    async with serving(tmp_path, specs=[spec(1, retain="cold")]) as served:
        await load(served, 2, retain="cold")
        await served.registry.swap("m0@2", who="test")
        for active in ("m0@1", "m0@2", "m0@1"):
            swap = await served.registry.rollback("m0", who="test")
            assert swap.active == active
            assert await served.answer("count 3") == COUNT_3
        await eventually(lambda: served.registry.status("m0@2").phase == "cold")


async def test_a_request_that_comes_as_a_replaced_version_ends_is_not_cut_short(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, specs=[spec(1, retain="cold")]) as served:
        await load(served, 2)
        async with served.registry.acquire("m0@1"):
            await served.registry.swap("m0@2", who="test")
            await asyncio.sleep(0)
        # At this moment its end is due, and has not come yet.
        assert await served.answer("count 30", "m0@1") == "".join(f"{n} " for n in range(30))
        await eventually(lambda: served.registry.status("m0@1").phase == "cold")


async def test_what_is_not_retained_is_gone_also_after_a_replace(tmp_path: Path) -> None:
    async with serving(tmp_path, specs=[spec(1, retain="none")]) as served:
        await served.registry.replace(spec(2), who="test")
        await eventually(lambda: states(served) == {"m0@2": "active"})
        with pytest.raises(ConflictError):
            await served.registry.rollback("m0", who="test")


# The end of the server


@pytest.mark.parametrize("change", ["load", "replace", "rollback", "unload"])
async def test_a_server_that_closes_amid_a_change_leaves_no_process(
    tmp_path: Path, change: str
) -> None:
    declared = spec(1, "slow-later", retain="cold")
    async with serving(tmp_path, specs=[declared]) as served:
        changing = asyncio.create_task(_change(served, change, tmp_path))
        await served.until(lambda s: s.phase == "reading" and (tmp_path / SLOW_MARKER).exists())
        await served.registry.close()
        await asyncio.wait([changing])
        if change in ("replace", "rollback"):
            assert isinstance(changing.exception(), DrainingError)
        assert not served.registry.num_leases
        assert not [pid for status in served.registry.statuses() for pid in status.pids]


async def _change(served: Served, change: str, state_dir: Path) -> None:
    """Come to a point at which a worker loads for ever."""
    registry = served.registry
    if change == "rollback":
        await load(served, 2)
        await registry.swap("m0@2", who="test")
        await eventually(lambda: served.registry.status("m0@1").phase == "cold")
    served.seen.clear()
    (state_dir / SLOW_MARKER).touch()
    match change:
        case "load":
            await registry.load(spec(2, "slow"), who="test")
        case "replace":
            await registry.replace(spec(2, "slow"), who="test")
        case "rollback":
            await registry.rollback("m0", who="test")
        case "unload":
            await begin_to_load(served, 2)
            await registry.unload("m0", who="test")


# Memory


class Machine:
    """Tells how much memory is available, by whose worker is up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, available: int) -> None:
        self.available = available
        self.when_gone: Callable[[], int] = lambda: 0
        monkeypatch.setattr(memory, "available_memory", self)
        monkeypatch.setattr(replicas, "mapped_bytes", lambda _pid: 0)

    def __call__(self) -> int:
        return self.available + self.when_gone()


async def test_what_does_not_fit_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, 4 * GIB)
    async with serving(tmp_path, sizes=lambda _: 10 * GIB) as served:
        with pytest.raises(InsufficientMemoryError, match=r"10\.0 GiB.*4\.0 GiB"):
            await served.registry.load(spec(2), who="test")
        with pytest.raises(InsufficientMemoryError):
            await served.registry.load(spec(1, name="new"), who="test")
        assert states(served) == {"m0@1": "active"}
        assert "new" not in served.registry._catalogue.models


async def test_two_loads_at_once_are_not_promised_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, 15 * GIB)
    async with serving(tmp_path, sizes=lambda _: 10 * GIB) as served:
        loads = (served.registry.load(spec(1, "slow", name), who="test") for name in "ab")
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert sum(isinstance(result, InsufficientMemoryError) for result in results) == 1
        (loading,) = [name for name in "ab" if name in served.registry._catalogue.models]
        await served.registry.unload(loading, who="test")  # and the promise is taken back
        await eventually(lambda: loading not in {s.name for s in served.registry.statuses()})
        await served.registry.load(spec(1, name="c"), who="test")
        await served.until(lambda s: s.name == "c" and s.state == "active")
        await served.registry.load(spec(1, name="d"), who="test")  # c has what it needs


async def test_a_warm_replaced_version_gives_its_memory_when_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, GIB)
    sizes = {2: MIB, 3: 10 * GIB, 4: GIB + MIB}
    async with serving(tmp_path, sizes=lambda spec: sizes.get(spec.version)) as served:
        await load(served, 2)
        await served.registry.swap("m0@2", who="test")
        await eventually(lambda: served.registry.status("m0@1").memory_bytes > MIB)
        machine.when_gone = lambda: 0 if served.registry.status("m0@1").pids else 2 * MIB
        with pytest.raises(InsufficientMemoryError):
            await served.registry.load(spec(3), who="test")
        assert served.registry.status("m0@1").pids, "it would not have been enough"
        await load(served, 4)
        assert states(served) == {"m0@1": "deprecated", "m0@2": "active", "m0@4": "ready"}
        assert served.registry.status("m0@1").phase == "cold"


async def test_a_replace_without_enough_memory_is_refused_while_the_old_version_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, 4 * GIB)
    async with serving(tmp_path, sizes=lambda _: 10 * GIB) as served:
        pid = served.pid
        with pytest.raises(InsufficientMemoryError):
            await served.registry.replace(spec(2), who="test")
        assert states(served) == {"m0@1": "active"}
        assert served.pid == pid, "known beforehand, so nothing has ended"
