"""Swaps in mode `queue`: what is refused before anything ends, and what is left when one fails."""

import asyncio
import time
from pathlib import Path

import pytest

from headrace.errors import DeadlineError, HeadraceError, ModelFileError
from headrace.registry.spec import ModelSpec
from headrace.registry.storage.store import Store
from scripted_serving import Served, serving, spec, states

COUNT_3 = "0 1 2 "


async def test_a_source_that_is_none_is_refused_while_the_old_version_answers(
    tmp_path: Path,
) -> None:
    def size(spec: ModelSpec) -> int | None:
        if spec.source == "typo":
            raise ModelFileError("typo: no such file")
        return None

    async with serving(tmp_path, sizes=size) as served:
        pid = served.pid
        with pytest.raises(ModelFileError, match="no such file"):
            await served.registry.replace(spec(2, "typo"), who="test")
        assert served.pid == pid
        assert states(served) == {"m0@1": "active"}
        assert await served.registry.history("m0", 10) == []


async def test_a_version_whose_pointer_is_not_written_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_fields: object) -> None:
        raise HeadraceError("the disk is full")

    monkeypatch.setattr(Store, "activate", fail)
    with pytest.raises(HeadraceError, match="the disk is full"):
        await served.registry.replace(spec(2), who="test")
    monkeypatch.undo()
    assert states(served) == {"m0@1": "active"}
    (stored,) = await served.registry._journal._do(lambda store: store.read())
    assert [each.spec.version for each in stored.versions] == [1]
    assert (await served.registry.replace(spec(2), who="test")).active == "m0@2"


async def test_a_replace_waits_for_running_requests_no_longer_than_its_deadline(
    served: Served,
) -> None:
    pid = served.pid
    async with served.registry.acquire("m0"):
        waiting = time.monotonic() + 0.1
        with pytest.raises(DeadlineError, match="m0@1"):
            await served.registry.replace(spec(2), who="test", deadline=waiting)
        assert await served.answer("count 3") == COUNT_3
    assert served.pid == pid
    assert states(served) == {"m0@1": "active"}


async def test_a_drain_lets_a_change_end(served: Served) -> None:
    replacing = asyncio.create_task(served.registry.replace(spec(2, "slow-load 0.3"), who="test"))
    await served.until(lambda s: s.version == 2 and s.phase == "reading")
    assert not await served.registry.drain(0.05)
    assert await served.registry.drain(30)
    assert (await replacing).active == "m0@2"
