import asyncio
import os
import resource
import signal
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import (
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    ModelFileError,
    ModelNotFoundError,
    NotReadyError,
    WorkerDiedError,
)
from headrace.generation import SamplingParams
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from scripted_serving import COMMAND, IMPATIENT, Served, generate, is_alive, new_router, serving
from scripted_worker import MARKER, NUM_BLOCKS

COUNT_3 = "0 1 2 "


def expected(count: int) -> str:
    return "".join(f"{number} " for number in range(count))


# Serving


async def test_a_model_answers_by_name_and_by_version(served: Served) -> None:
    assert await served.answer("count 3", "m0") == COUNT_3
    assert await served.answer("count 3", "m0@1") == COUNT_3
    assert served.status.state == "active"
    assert served.registry.is_ready


async def test_a_bug_that_a_request_meets_is_told_to_its_caller_alone(served: Served) -> None:
    with pytest.raises(HeadraceError, match="failed on this request"):
        await served.answer("bug")
    assert await served.answer("count 3") == COUNT_3


async def test_an_unknown_name_or_version_is_not_found(served: Served) -> None:
    for name in ("other", "m0@2", ""):
        with pytest.raises(ModelNotFoundError, match=f"`{name}`"):
            await served.answer("count 1", name)


async def test_many_requests_at_once_each_get_their_own_answer(served: Served) -> None:
    counts = range(1, 60)
    answers = await asyncio.gather(*(served.answer(f"count {count}") for count in counts))
    assert answers == [expected(count) for count in counts]


async def test_requests_of_one_id_do_not_meet(served: Served) -> None:
    answers = await asyncio.gather(
        served.answer("count 5", request_id="same"), served.answer("count 3", request_id="same")
    )
    assert answers == [expected(5), COUNT_3]


async def test_tokens_and_text_cross_the_channel(served: Served) -> None:
    async with served.registry.acquire("m0") as model:
        assert await model.tokenize("ab", add_special_tokens=False) == [97, 98]
        assert await model.detokenize([97, 98]) == "ab"
        with pytest.raises(InvalidRequestError, match="no such token"):
            await model.detokenize([1000])


async def test_a_refusal_crosses_the_channel_whole(served: Served) -> None:
    with pytest.raises(InvalidRequestError, match="refused as told") as refusal:
        await served.answer("refuse")
    assert refusal.value.param == "prompt"


async def test_a_value_that_no_frame_can_hold_is_the_callers_mistake(served: Served) -> None:
    with pytest.raises(InvalidRequestError, match="out of range"):
        await served.answer("\ud800")
    assert await served.answer("count 3") == COUNT_3


async def test_the_versions_of_a_name_run_side_by_side_and_the_highest_is_active(
    tmp_path: Path,
) -> None:
    registry = Registry(tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT)
    await registry.start(
        [ModelSpec(name="m", source="good", version=version) for version in (2, 1)]
    )
    try:
        await registry.loaded()
        states = {status.version: status.state for status in registry.statuses()}
        assert states == {1: "ready", 2: "active"}
        async with registry.acquire("m") as model:
            assert model.info.model_id == "m@2"
        async with registry.acquire("m@1") as model:
            assert model.info.model_id == "m@1"
    finally:
        await registry.close()


async def test_a_flood_of_chunks_arrives_whole(served: Served) -> None:
    answer = await served.answer("flood 200")
    assert answer == expected(20_000)


# Leaving and deadlines


async def test_a_reader_that_leaves_aborts_its_request(served: Served) -> None:
    async with served.registry.acquire("m0") as model:
        async with aclosing(generate(model, "forever")) as chunks:
            await anext(chunks)
        await served.until_stats(lambda stats: stats.num_aborted == 1 and stats.num_running == 0)


async def test_a_storm_of_aborts_leaves_nothing_running_and_all_blocks_free(
    served: Served,
) -> None:
    async def leave_early(number: int) -> None:
        async with (
            served.registry.acquire("m0") as model,
            aclosing(generate(model, "forever")) as chunks,
        ):
            for _ in range(number % 4):
                await anext(chunks)

    async def be_cancelled(number: int) -> None:
        answer = asyncio.create_task(served.answer("forever"))
        await asyncio.sleep(number % 7 / 100)
        answer.cancel()
        await asyncio.wait([answer])

    await asyncio.gather(*(leave_early(n) for n in range(100)), *(map(be_cancelled, range(100))))
    stats = await served.until_stats(lambda stats: stats.num_running == 0)
    assert stats.num_free_blocks == NUM_BLOCKS
    assert served.registry.num_leases == 0
    assert await served.answer("count 3") == COUNT_3


async def test_a_deadline_fires_while_the_worker_is_stuck(served: Served) -> None:
    with pytest.raises(DeadlineError):
        await served.answer("hang", deadline=time.monotonic() + 0.2)


async def test_a_request_that_comes_too_late_is_not_sent(served: Served) -> None:
    with pytest.raises(DeadlineError):
        await served.answer("crash", deadline=time.monotonic() - 1)
    assert await served.answer("count 3") == COUNT_3
    assert served.status.restarts == 0


# Workers that die


async def test_a_killed_worker_is_replaced_and_what_waits_is_answered(served: Served) -> None:
    pid = served.pid
    os.kill(pid, signal.SIGSTOP)  # so that nothing is answered before the end
    waiting = [asyncio.create_task(served.answer(f"count {n}")) for n in range(1, 30)]
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [expected(n) for n in range(1, 30)]
    assert served.status.restarts == 1
    assert served.pid != pid
    assert not is_alive(pid)
    assert "SIGKILL" in (served.status.reason or "")


async def test_answers_that_have_begun_go_on_where_they_were(served: Served) -> None:
    pid = served.pid
    answers = [asyncio.create_task(served.answer(f"count {200 + n}")) for n in range(20)]
    await served.until_stats(lambda stats: stats.num_running == 20 and stats.num_steps > 50)
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*answers) == [expected(200 + n) for n in range(20)]
    assert served.pid != pid


async def test_an_answer_that_kills_every_worker_ends_with_an_honest_error(served: Served) -> None:
    async with served.registry.acquire("m0") as model:
        chunks = generate(model, "crash after 3")
        assert [(await anext(chunks)).text for _ in range(3)] == ["0 ", "1 ", "2 "]
        with pytest.raises(WorkerDiedError, match=r"SIGKILL.*4 workers in a row"):
            await anext(chunks)
    assert await served.answer("count 3") == COUNT_3


async def test_requests_may_wait_for_a_worker_that_is_coming_back(served: Served) -> None:
    os.kill(served.pid, signal.SIGKILL)
    await served.until(lambda status: status.phase == "restarting" and status.restarts == 1)
    assert not served.registry.is_ready
    assert await served.answer("count 3") == COUNT_3


async def test_calls_wait_for_the_next_worker_too(served: Served) -> None:
    os.kill(served.pid, signal.SIGKILL)
    async with served.registry.acquire("m0") as model:
        assert await model.tokenize("a") == [1, 97]


async def test_a_request_that_kills_workers_is_tried_three_times(served: Served) -> None:
    with pytest.raises(WorkerDiedError, match="3 workers in a row"):
        await served.answer("crash")
    assert await served.answer("count 3") == COUNT_3
    assert served.status.restarts == 3


async def test_a_request_that_kills_workers_takes_no_waiting_one_along(served: Served) -> None:
    answers = await asyncio.gather(
        *(served.answer("crash" if number == 5 else "count 1") for number in range(10)),
        return_exceptions=True,
    )
    assert isinstance(answers.pop(5), WorkerDiedError)
    assert answers == [expected(1)] * 9


async def test_a_request_that_kills_workers_takes_no_answer_along_that_has_begun(
    served: Served,
) -> None:
    answers = [asyncio.create_task(served.answer("count 600")) for _ in range(6)]
    await served.until_stats(lambda stats: stats.num_steps > 20)
    with pytest.raises(WorkerDiedError, match="3 workers in a row"):
        await served.answer("crash")
    assert await asyncio.gather(*answers) == [expected(600)] * 6


async def test_a_stopped_process_is_noticed_and_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        pid = served.pid
        os.kill(pid, signal.SIGSTOP)
        assert await served.answer("count 3") == COUNT_3
        assert not is_alive(pid)
        assert "not been heard" in (served.status.reason or "")


async def test_a_worker_that_has_work_and_takes_no_step_is_replaced(served: Served) -> None:
    nine = SamplingParams(max_tokens=9)
    assert await served.answer("hang after 3", sampling=nine) == expected(9)
    assert "without progress" in (served.status.reason or "")


async def test_a_model_whose_worker_stops_coming_back_refuses_until_it_does(tmp_path: Path) -> None:
    async with serving(tmp_path, "crash-later") as served:
        (tmp_path / MARKER).touch()
        with pytest.raises(NotReadyError, match="m0@1 is loading"):
            await served.answer("crash")
        assert served.status.state == "active"
        assert not served.status.is_answering
        assert not served.registry.is_ready
        with pytest.raises(NotReadyError) as refusal:
            await served.answer("count 1")
        assert refusal.value.retry_after is not None
        (tmp_path / MARKER).unlink()
        served.seen.clear()
        await served.until(lambda status: status.is_answering)
        assert await served.answer("count 3") == COUNT_3


# Loads that fail


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("missing", ModelFileError, "/models/missing.gguf: no such file"),
        ("broken", HeadraceError, "RuntimeError: out of cheese"),
        ("broken-start", HeadraceError, "RuntimeError: no engine"),
        ("crash", WorkerDiedError, "the worker was killed by SIGKILL while loading"),
    ],
)
async def test_a_load_that_fails_says_why_and_harms_no_other(
    tmp_path: Path, source: str, kind: type[HeadraceError], reason: str
) -> None:
    async with serving(tmp_path, source, "good", wait=False) as served:
        with pytest.raises(kind, match=reason):
            await served.registry.loaded()
        await served.until(lambda status: status.name == "m1" and status.state == "active")
        bad, good = served.registry.statuses()
        assert (bad.state, bad.reason) == ("failed", reason)
        assert good.state == "active"
        assert served.registry.is_ready
        assert await served.answer("count 3", "m1") == COUNT_3


async def test_a_load_that_breaks_is_in_the_models_own_log_file(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    registry = Registry(
        tmp_path, new_router=new_router, command=COMMAND, patience=IMPATIENT, log_dir=logs
    )
    await registry.start([ModelSpec(name="m", source="broken")])
    with pytest.raises(HeadraceError, match="out of cheese"):
        await registry.loaded()
    await registry.close()
    text = (logs / "m@1.log").read_text()
    assert "model.load_broke" in text
    assert "Traceback" in text


async def test_a_failure_told_between_two_looks_at_the_worker_is_not_forgotten(
    tmp_path: Path,
) -> None:
    # Looking all the time: every frame then comes while a look is due.
    registry = Registry(
        tmp_path, new_router=new_router, command=COMMAND, patience=replace(IMPATIENT, tick=1e-6)
    )
    await registry.start([ModelSpec(name="m", source="broken")])
    with pytest.raises(HeadraceError, match="out of cheese"):
        await asyncio.wait_for(registry.loaded(), 30)
    await registry.close()


async def test_a_command_that_cannot_be_started_fails_the_model(tmp_path: Path) -> None:
    registry = Registry(
        tmp_path, new_router=new_router, command=("/nonexistent",), patience=IMPATIENT
    )
    await registry.start([ModelSpec(name="m", source="good")])
    with pytest.raises(WorkerDiedError, match="could not be started"):
        await registry.loaded()
    await registry.close()


async def test_a_shortage_of_descriptors_does_not_fail_a_model_that_has_served(
    tmp_path: Path,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(tmp_path) as served:
        assert await served.answer("count 1")
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            os.kill(served.pid, signal.SIGKILL)
            await served.until(lambda status: status.restarts > IMPATIENT.max_failed_loads + 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await served.until(lambda status: status.restarts > 0 and status.is_answering)
        assert await served.answer("count 1")


async def test_while_loading_requests_are_told_when_to_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, "slow", wait=False) as served:
        await served.until(lambda status: status.phase == "reading")
        assert served.status.progress == 0.5
        with pytest.raises(NotReadyError, match="loading") as refusal:
            await served.answer("count 1")
        assert refusal.value.retry_after is not None
        assert refusal.value.retry_after >= 1
        assert not served.registry.is_ready


async def test_no_models_are_not_ready(tmp_path: Path) -> None:
    registry = Registry(tmp_path, new_router=new_router)
    await registry.start([])
    assert not registry.is_ready
    await registry.close()


# Ending


async def test_drain_lets_leased_requests_end_and_refuses_others(served: Served) -> None:
    running = asyncio.create_task(served.answer("count 40"))
    await served.until_stats(lambda stats: stats.num_running == 1)
    draining = asyncio.create_task(served.registry.drain(10))
    await asyncio.sleep(0)
    assert not served.registry.is_ready
    with pytest.raises(DrainingError) as refusal:
        await served.answer("count 1")
    assert refusal.value.retry_after is not None
    assert refusal.value.retry_after > 9  # the rest of the drain, and a load
    assert await draining
    assert await running == expected(40)


async def test_whoever_is_refused_is_told_the_measured_load_time_too(served: Served) -> None:
    (supervisor,) = served.registry._catalogue.find("m0")._replicas._workers
    supervisor._load_seconds = 20.0
    assert supervisor.retry_after_stop(time.monotonic() + 15) == pytest.approx(35, abs=1)
    assert supervisor.retry_after_stop(0.0) == 20
    assert supervisor.retry_after_stop(time.monotonic() + 500) == 60


async def test_drain_gives_up_at_its_timeout(served: Served) -> None:
    running = asyncio.create_task(served.answer("forever"))
    await served.until_stats(lambda stats: stats.num_running == 1)
    assert not await served.registry.drain(0.05)
    await served.registry.close()
    with pytest.raises(DrainingError) as end:
        await running
    assert end.value.retry_after is not None
    assert 1 <= end.value.retry_after <= 60


async def test_a_worker_told_to_terminate_finishes_first_and_is_replaced(served: Served) -> None:
    running = asyncio.create_task(served.answer("count 40"))
    await served.until_stats(lambda stats: stats.num_running == 1)
    os.kill(served.pid, signal.SIGTERM)
    assert await running == expected(40)
    await served.until(lambda status: status.restarts == 1 and status.is_answering)


async def test_an_interrupt_is_for_the_parent_to_judge(served: Served) -> None:
    assert os.getpgid(served.pid) != os.getpgid(0)
    os.kill(served.pid, signal.SIGINT)
    assert await served.answer("count 3") == COUNT_3
    assert served.status.restarts == 0


async def test_close_while_loading_ends_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, "slow", wait=False) as served:
        await served.until(lambda status: status.phase == "reading")
        loaded = asyncio.create_task(served.registry.loaded())
        await asyncio.sleep(0)
        await served.registry.close()
        with pytest.raises(DrainingError) as end:
            await loaded
        assert end.value.retry_after is not None
