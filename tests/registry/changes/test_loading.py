"""Changes of models at run time, with real workers and a real database."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from headrace.errors import (
    ConflictError,
    HeadraceError,
    ModelNotFoundError,
    NotReadyError,
    UnavailableError,
)
from headrace.registry.changes import loading
from headrace.registry.changes.safety import UnsafeSwapError
from headrace.registry.spec import ModelSpec
from scripted_serving import Served, generate, is_alive, load, serving, spec, states
from scripted_worker import MARKER

COUNT_3 = "0 1 2 "


async def test_a_version_is_loaded_beside_the_active_one(served: Served) -> None:
    status = await served.registry.load(spec(2), who="test")
    assert status.state == "loading"
    assert await served.answer("count 3") == COUNT_3
    await served.until(lambda s: s.version == 2 and s.state == "ready")
    assert states(served) == {"m0@1": "active", "m0@2": "ready"}
    assert served.registry.status("m0@2").health_score == 1.0


async def test_a_swap_moves_the_name_and_lets_running_requests_end_where_they_are(
    served: Served,
) -> None:
    await load(served, 2)
    async with served.registry.acquire("m0") as model:
        assert model.info.model_id == "m0@1"
        async with aclosing(generate(model, "count 50")) as chunks:
            await anext(chunks)
            swap = await served.registry.swap("m0@2", who="test")
            assert (swap.previous, swap.active) == ("m0@1", "m0@2")
            async with served.registry.acquire("m0") as other:
                assert other.info.model_id == "m0@2"
            rest = "".join([chunk.text async for chunk in chunks])
    assert rest.endswith("49 ")
    assert states(served) == {"m0@1": "deprecated", "m0@2": "active"}


async def test_a_rollback_returns_to_the_version_before_and_back(served: Served) -> None:
    await load(served, 2)
    await served.registry.swap("m0@2", who="test")
    back = await served.registry.rollback("m0", who="test")
    assert (back.previous, back.active) == ("m0@2", "m0@1")
    again = await served.registry.rollback("m0", who="test")
    assert again.active == "m0@2"


async def test_nothing_to_roll_back_to_is_a_conflict(served: Served) -> None:
    with pytest.raises(ConflictError, match="no version to roll back to"):
        await served.registry.rollback("m0", who="test")


async def test_a_version_that_is_not_kept_warm_ends_with_its_last_request(
    served: Served,
) -> None:
    await load(served, 2, retain="cold")
    await load(served, 3, retain="none")
    await served.registry.swap("m0@2", who="test")
    (pid,) = served.registry.status("m0@2").pids
    async with served.registry.acquire("m0@2"):
        await served.registry.swap("m0@3", who="test")
        assert is_alive(pid)
    await served.until(lambda s: s.version == 2 and s.phase == "cold")
    assert not is_alive(pid)
    back = await served.registry.rollback("m0", who="test")  # loads it again
    assert back.active == "m0@2"
    assert await served.answer("count 3") == COUNT_3
    await served.until(lambda s: s.version == 3 and s.state == "unloading")
    while "m0@3" in states(served):  # noqa: ASYNC110 - nothing tells of what is gone
        await asyncio.sleep(0.01)


async def test_a_failed_load_harms_nobody_and_says_why(served: Served) -> None:
    await load(served, 2, "missing")
    status = served.registry.status("m0@2")
    assert (status.state, status.reason) == ("failed", "/models/missing.gguf: no such file")
    with pytest.raises(UnsafeSwapError, match="exists_and_ready"):
        await served.registry.swap("m0@2", who="test")
    assert await served.answer("count 3") == COUNT_3
    await load(served, 2)  # a failed one may be tried again
    assert states(served)["m0@2"] == "ready"


async def test_what_is_there_cannot_be_loaded_again(served: Served) -> None:
    with pytest.raises(ConflictError, match="already there, as active"):
        await served.registry.load(spec(1), who="test")


async def test_the_first_version_of_a_new_model_becomes_active(served: Served) -> None:
    await served.registry.load(ModelSpec(name="new", source="good"), who="test")
    await served.until(lambda s: s.name == "new" and s.state == "active")
    assert await served.answer("count 3", "new") == COUNT_3


async def test_unknown_versions_are_not_found(served: Served) -> None:
    for action in (served.registry.swap, served.registry.unload):
        with pytest.raises(ModelNotFoundError):
            await action("m0@7", who="test")
    with pytest.raises(ModelNotFoundError):
        await served.registry.rollback("other", who="test")


async def test_a_version_is_unloaded_when_its_requests_have_ended(served: Served) -> None:
    await load(served, 2)
    (pid,) = served.registry.status("m0@2").pids
    async with served.registry.acquire("m0@2") as model:
        assert model.info.model_id == "m0@2"
        await served.registry.unload("m0@2", who="test")
        with pytest.raises(ModelNotFoundError):
            await served.answer("count 1", "m0@2")
        assert is_alive(pid)
    while "m0@2" in states(served):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not is_alive(pid)
    with pytest.raises(ConflictError, match="is active"):
        await served.registry.unload("m0@1", who="test")


async def test_a_whole_model_can_be_unloaded_also_while_it_loads(served: Served) -> None:
    await served.registry.load(spec(2, "slow"), who="test")
    await served.until(lambda s: s.version == 2 and s.phase == "reading")
    pids = [pid for status in served.registry.statuses() for pid in status.pids]
    await served.registry.unload("m0", who="test")
    with pytest.raises(ModelNotFoundError):
        await served.answer("count 1")
    while states(served):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not any(is_alive(pid) for pid in pids)


async def test_replace_makes_requests_wait_while_nothing_is_loaded(served: Served) -> None:
    answers = asyncio.create_task(_answer_for_ever(served))
    swap = await served.registry.replace(spec(2), who="test")
    assert (swap.previous, swap.active) == ("m0@1", "m0@2")
    answers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answers
    status = served.registry.status("m0@1")
    assert (status.state, status.phase) == ("deprecated", "cold")


async def test_replace_brings_the_old_version_back_when_the_new_one_fails(
    served: Served,
) -> None:
    answers = asyncio.create_task(_answer_for_ever(served))
    with pytest.raises(HeadraceError, match="out of cheese"):
        await served.registry.replace(spec(2, "broken"), who="test")
    assert states(served) == {"m0@1": "active", "m0@2": "failed"}
    assert await served.answer("count 3") == COUNT_3
    answers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answers


async def test_history_tells_what_was_done_by_whom_and_how_it_ended(served: Served) -> None:
    await load(served, 2)
    await load(served, 3, "missing")
    await served.registry.swap("m0@2", who="anna")
    await served.registry.rollback("m0", who="ben")
    found = [(c.kind, c.previous, c.active, c.who, c.outcome) for c in await _history(served)]
    assert found == [
        ("rollback", "m0@2", "m0@1", "ben", "done"),
        ("swap", "m0@1", "m0@2", "anna", "done"),
        ("load", "m0@1", "m0@3", "test", "failed"),
        ("load", "m0@1", "m0@2", "test", "done"),
    ]


@pytest.mark.parametrize("late", ["replace", "unload"])
async def test_a_change_that_comes_as_its_model_goes_finds_none(served: Served, late: str) -> None:
    registry = served.registry
    await registry.load(ModelSpec(name="new", source="good"), who="test")
    await served.until(lambda s: s.name == "new" and s.state == "active")
    unloading, others = asyncio.create_task(registry.unload("new", who="first")), []
    while not unloading.done():
        work = (
            registry.replace(ModelSpec(name="new", source="good", version=2), who="late")
            if late == "replace"
            else registry.unload("new", who="late")
        )
        others.append(asyncio.create_task(work))
        await asyncio.sleep(0)
    again = asyncio.create_task(
        registry.load(ModelSpec(name="new", source="good", version=5), who="test")
    )
    results = await asyncio.gather(*others, return_exceptions=True)
    assert {type(result) for result in results} <= {ConflictError, ModelNotFoundError}
    assert (await again).state == "loading"
    await served.until(lambda s: s.model_id == "new@5" and s.state == "active")
    assert await served.answer("count 3", "new") == COUNT_3


async def test_loads_under_way_are_limited_in_number(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_loaded_models=1) as served,
        served.registry.acquire("m0"),  # so that no other can have its place
    ):
        loads = [
            served.registry.load(ModelSpec(name=f"n{number}", source="good"), who="test")
            for number in range(loading.MAX_LOADS + 5)
        ]
        results = await asyncio.gather(*loads, return_exceptions=True)
        refused = [each for each in results if isinstance(each, UnavailableError)]
        num_accepted = len(results) - len(refused)
        assert 0 < num_accepted <= loading.MAX_LOADS
        assert len(served.registry.statuses()) == 1 + num_accepted
        assert all(each.retry_after for each in refused)


async def test_of_failed_versions_the_latest_are_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_FAILED", 1)
    for version in (2, 3):
        await load(served, version, "missing")
    await load(served, 4)
    assert states(served) == {"m0@1": "active", "m0@3": "failed", "m0@4": "ready"}
    (stored,) = await served.registry._journal._do(lambda store: store.read())
    assert [each.spec.version for each in stored.versions] == [1, 3, 4]


async def test_nothing_is_left_of_a_model_whose_last_version_was_unloaded(served: Served) -> None:
    new = ModelSpec(name="new", source="missing")
    await served.registry.load(new, who="test")
    await served.until(lambda s: s.name == "new" and s.state == "failed")
    await served.registry.unload("new@1", who="test")
    stored = await served.registry._journal._do(lambda store: store.read())
    assert [each.name for each in stored] == ["m0"]
    while "new@1" in states(served):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await served.registry.load(new, who="test")


async def test_a_failed_active_version_that_is_tried_again_is_loading(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    async with serving(tmp_path, "crash-later", wait=False) as served:
        await served.until(lambda s: s.state == "failed")
        with pytest.raises(NotReadyError, match="has failed"):
            await served.answer("count 3")
        await served.registry.load(spec(1, "slow-load 0.3"), who="test")
        served.seen.clear()
        await served.until(lambda s: s.phase == "reading")
        with pytest.raises(NotReadyError, match="loading"):
            await served.answer("count 3")
        await served.until(lambda s: s.state == "active")
        assert await served.answer("count 3") == COUNT_3
        assert states(served) == {"m0@1": "active"}


async def _history(served: Served) -> list:
    return await served.registry.history("m0", 10)


async def _answer_for_ever(served: Served) -> None:
    while True:
        assert await served.answer("count 3") == COUNT_3
