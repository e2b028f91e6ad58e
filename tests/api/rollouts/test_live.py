import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from api.rollouts.conftest import alive
from headrace.api.rollouts.live import LiveRollouts
from headrace.api.trials import Trials
from headrace.errors import ConflictError, InvalidRequestError, UnavailableError
from headrace.generation import GenerationRequest, SamplingParams
from headrace.registry.changes.safety import Check, SafetyReport, UnsafeSwapError
from headrace.registry.registry import Registry
from headrace.routing.observation import Observation
from headrace.routing.rollouts.plan import Guards, Plan
from headrace.routing.rollouts.rollout import Rollout
from headrace.routing.rollouts.shadow import Answer
from scripted_serving import COMMAND, IMPATIENT, Served, load, new_router, unknown_size


def plan(*stages: float, seconds: float = 0.0, shadow_percent: float = 0.0) -> Plan:
    return Plan(
        name="m0",
        candidate="m0@2",
        guards=Guards(max_error_rate=0.2, max_latency_ratio=2.0),
        stages=stages or (50.0, 100.0),
        stage_seconds=seconds,
        shadow_percent=shadow_percent,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - decisions are made by the clock
            await asyncio.sleep(0.005)


def serve(live: LiveRollouts, count: int, *, failing: bool = False) -> None:
    for i in range(count):
        choice = live.rollouts.choose("m0", f"user {i}", f"request {i}")
        assert choice is not None
        live.rollouts.begin(choice)
        failed = failing and choice.is_candidate
        seen = Observation(
            user=f"user {i}",
            failed=failed,
            ttft=0.1,
            latency=1 + (i % 5) / 100,
            num_tokens=4,
        )
        live.rollouts.end(choice, "m0@2" if choice.is_candidate else "m0@1", seen)


def active(served: Served) -> str:
    return served.registry.status("m0").model_id


def kinds(rollout: Rollout) -> list[str]:
    return [decision.kind for decision in rollout.decisions]


async def test_a_candidate_that_is_well_becomes_active(live: LiveRollouts, served: Served) -> None:
    rollout = await live.begin(plan())
    serve(live, 3000)
    await until(lambda: rollout.stage_percent == 100.0)
    serve(live, 500)
    await until(lambda: rollout.state == "promoted")
    assert active(served) == "m0@2"
    assert kinds(rollout) == ["started", "advanced", "passed", "promoted"]
    assert live.rollouts.choose("m0", "ada", "r") is None
    [swap, *_] = await served.registry.history("m0", 1)
    assert (swap.kind, swap.who) == ("swap", f"rollout {rollout.id}")


async def test_a_candidate_whose_requests_fail_is_sent_back(
    live: LiveRollouts, served: Served
) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    serve(live, 200, failing=True)
    await until(lambda: rollout.is_over)
    assert (rollout.state, active(served)) == ("rolled_back", "m0@1")


async def test_a_candidate_whose_worker_dies_is_sent_back_and_its_users_are_answered(
    live: LiveRollouts, served: Served
) -> None:
    rollout = await live.begin(plan(99.0, seconds=300.0))
    (pid,) = served.registry.status("m0@2").pids
    os.kill(pid, signal.SIGKILL)
    await until(lambda: rollout.is_over)
    assert rollout.state == "rolled_back"
    assert "m0@2" in rollout.decisions[-1].reason
    assert await served.answer("count 2") == await served.answer("count 2", "m0@1")


async def test_a_swap_by_hand_ends_a_rollout(live: LiveRollouts, served: Served) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    await load(served, 3)
    await served.registry.swap("m0@3", who="ada")
    await until(lambda: rollout.is_over)
    assert (rollout.state, rollout.decisions[-1].reason) == (
        "aborted",
        "m0@3 was made active by hand",
    )


async def test_unloading_the_candidate_ends_a_rollout(live: LiveRollouts, served: Served) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    await served.registry.unload("m0@2", who="ada")
    await until(lambda: rollout.is_over)
    assert (rollout.state, rollout.decisions[-1].reason) == ("aborted", "m0@2 is not loaded")


async def test_a_person_may_promote_at_any_stage(live: LiveRollouts, served: Served) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    await live.pause(rollout, who="ada")
    await live.promote(rollout, who="ada")
    assert (rollout.state, rollout.decisions[-1].reason) == ("promoted", "by ada")
    assert active(served) == "m0@2"
    with pytest.raises(ConflictError, match="is promoted"):
        await live.abort(rollout, who="ada")


async def test_a_promotion_that_is_refused_changes_nothing(
    live: LiveRollouts, served: Served
) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    before = rollout.decisions
    served.registry._drain.begin(1.0)
    with pytest.raises(UnavailableError):
        await live.promote(rollout, who="ada")
    assert (rollout.state, rollout.decisions) == ("running", before)


async def test_a_swap_that_nobody_asked_for_and_that_is_refused_is_paused(
    live: LiveRollouts, served: Served
) -> None:
    rollout = await live.begin(plan())
    served.registry._drain.begin(1.0)
    serve(live, 3000)
    await until(lambda: rollout.stage_percent == 100.0)
    serve(live, 500)
    await until(lambda: rollout.state == "paused")
    assert rollout.decisions[-1].reason.startswith("the swap was refused: ")
    assert (rollout.stage_percent, active(served)) == (50.0, "m0@1")


@pytest.mark.parametrize(
    ("unwell", "ended"), [("health_score", "rolled_back"), ("system_healthy", "paused")]
)
async def test_a_swap_that_is_unsafe_for_the_candidates_own_health_sends_it_back(
    live: LiveRollouts, served: Served, monkeypatch: pytest.MonkeyPatch, unwell: str, ended: str
) -> None:
    report = SafetyReport("m0@2", (Check(unwell, False, "as the test says"),))

    async def refuse(_model_id: str, **_how: object) -> None:
        raise UnsafeSwapError(report)

    monkeypatch.setattr(served.registry, "swap", refuse)
    rollout = await live.begin(plan())
    serve(live, 3000)
    await until(lambda: rollout.stage_percent == 100.0)
    serve(live, 500)
    await until(lambda: rollout.state != "running")
    assert (rollout.state, rollout.stage_percent) == (ended, 0.0 if rollout.is_over else 50.0)
    assert unwell in rollout.decisions[-1].reason


async def test_a_version_that_is_not_there_is_no_candidate(live: LiveRollouts) -> None:
    missing = Plan(name="m0", candidate="m0@9", guards=Guards(max_error_rate=0.1))
    with pytest.raises(InvalidRequestError, match="candidate: m0@9 is not loaded"):
        await live.begin(missing)


async def test_a_restart_goes_on_where_it_was(served: Served, database_url: str) -> None:
    async with alive(served.registry, database_url) as live:
        rollout = await live.begin(plan(20.0, 60.0, 100.0))
        serve(live, 5000)
        await until(lambda: rollout.stage_percent == 60.0)
        await live.pause(rollout, who="ada")
    async with alive(served.registry, database_url) as live:
        again = live.rollouts.find(rollout.id)
        assert (again.state, again.stage_percent) == ("paused", 60.0)
        assert kinds(again) == ["started", "advanced", "paused", "restarted"]
        assert again.decisions[1] == rollout.decisions[1]
        await live.abort(again, who="ada")
    async with alive(served.registry, database_url) as live:
        assert live.rollouts.find(rollout.id).state == "aborted"
        assert live.rollouts.choose("m0", "ada", "r") is None


async def test_a_rollout_survives_a_restart_of_all_that_it_needs(
    tmp_path: Path, database_url: str
) -> None:
    async with lives(tmp_path, database_url) as (served, live):
        for version in (1, 2):
            await load(served, version)
        rollout = await live.begin(plan(20.0, 60.0, 100.0))
        serve(live, 5000)
        await until(lambda: rollout.stage_percent == 60.0)
    async with lives(tmp_path, database_url) as (_, live):
        again = live.rollouts.find(rollout.id)
        assert live.rollouts.choose("m0", "ada", "r") is None  # its versions load
        await until(lambda: live.rollouts.choose("m0", "ada", "r") is not None)
        assert (again.state, again.stage_percent) == ("running", 60.0)
        serve(live, 5000)
        await until(lambda: again.stage_percent == 100.0)
        assert kinds(again) == ["started", "advanced", "restarted", "advanced"]


@asynccontextmanager
async def lives(state_dir: Path, database_url: str) -> AsyncIterator[tuple[Served, LiveRollouts]]:
    """One life of a server."""
    registry = Registry(
        state_dir,
        new_router=new_router,
        database_url=database_url,
        server="s",
        command=COMMAND,
        patience=IMPATIENT,
        sizes=unknown_size,
    )
    trials = Trials(registry, database_url=database_url, server="s")  # first, as a server does
    await registry.start([])
    try:
        await trials.start()
        yield Served(registry), trials.rollouts
    finally:
        await trials.close()
        await registry.close()


async def test_a_candidate_that_sleeps_is_known_after_a_restart(
    tmp_path: Path, database_url: str
) -> None:
    async with lives(tmp_path, database_url) as (served, live):
        for version in (1, 2, 3):
            await load(served, version)
        for model_id in ("m0@2", "m0@3", "m0@1"):
            await served.registry.swap(model_id, who="ada")
        assert served.registry.status("m0@2").state == "deprecated"
        rollout = await live.begin(plan(20.0, seconds=300.0))
    async with lives(tmp_path, database_url) as (served, live):
        again = live.rollouts.find(rollout.id)
        await until(lambda: live.rollouts.choose("m0", "ada", "r") is not None)
        status = served.registry.status("m0@2")
        assert (status.state, status.phase) == ("deprecated", "cold")
        live.rollouts.evaluate(time.time() + 60.0)
        assert (again.state, kinds(again)) == ("running", ["started", "restarted"])


async def test_a_look_that_is_cut_short_writes_its_decisions_once(
    live: LiveRollouts, served: Served, database_url: str
) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    rollout.pause(time.time(), "by ada")
    saving = asyncio.create_task(live._journal.save(rollout))
    await asyncio.sleep(0)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    await live.close()
    async with alive(served.registry, database_url) as again:
        assert kinds(again.rollouts.find(rollout.id)) == ["started", "paused", "restarted"]


async def test_what_cannot_be_written_down_does_not_begin(live: LiveRollouts) -> None:
    store = live._journal._store
    assert store is not None
    with store._engine.begin() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))
        connection.execute(text("DROP TABLE headrace_rollouts"))
    with pytest.raises(UnavailableError, match="cannot be stored"):
        await live.begin(plan())
    assert list(live.rollouts) == []


async def test_a_fault_in_one_look_does_not_end_all_looks(
    live: LiveRollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await live.begin(plan(seconds=300.0))
    with capture_logs() as lines, monkeypatch.context() as broken:
        broken.setattr(rollout, "evaluate", lambda _now: 1 / 0)
        await until(lambda: any(line["event"] == "rollouts.fault" for line in lines))
    serve(live, 200, failing=True)
    await until(lambda: rollout.state == "rolled_back")


async def test_a_mirrored_request_is_asked_of_the_candidate(live: LiveRollouts) -> None:
    rollout = await live.begin(plan(0.001, shadow_percent=100.0, seconds=300.0))
    choice = live.rollouts.choose("m0", "ada", "r")
    assert choice is not None
    assert choice.shadow == "m0@2"
    request = GenerationRequest(
        request_id="r", prompt="count 3", sampling=SamplingParams(temperature=0)
    )
    live.mirror(choice, request, Answer("something else", 2, 0.1))
    await until(lambda: rollout.shadow.num_mirrored == 1)
    assert (rollout.shadow.num_greedy, rollout.shadow.num_equal) == (1, 0)
