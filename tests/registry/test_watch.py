"""Readers of changes: none misses the last state, and none is remembered that has left."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.status import ModelStatus
from headrace.registry.watch import Watchers


def status(model: str, progress: float = 0.0) -> ModelStatus:
    return ModelStatus(
        model_id=f"{model}@1", name=model, version=1, state="loading", progress=progress
    )


async def read(watching: AsyncIterator[ModelStatus], number: int) -> list[ModelStatus]:
    return [await anext(watching) for _ in range(number)]


async def test_a_reader_sees_what_is_told_from_its_call_on() -> None:
    watchers = Watchers()
    watchers.tell(status("before"))
    watching = watchers.watch()
    watchers.tell(status("a"))  # before the first read, after the call
    reading = asyncio.create_task(read(watching, 2))
    await asyncio.sleep(0)
    watchers.tell(status("b"))
    assert await reading == [status("a"), status("b")]


async def test_a_slow_reader_sees_the_last_status_of_each_version_once() -> None:
    watchers = Watchers()
    watching = watchers.watch()
    for step in range(100):
        watchers.tell(status("a", step / 100))
        watchers.tell(status("b", step / 200))
    assert await read(watching, 2) == [status("a", 0.99), status("b", 0.495)]
    watchers.close()
    assert [each async for each in watching] == []


async def test_each_reader_has_its_own_pace() -> None:
    watchers = Watchers()
    quick, slow = watchers.watch(), watchers.watch()
    watchers.tell(status("a", 0.1))
    assert await read(quick, 1) == [status("a", 0.1)]
    watchers.tell(status("a", 0.2))
    assert await read(quick, 1) == [status("a", 0.2)]
    assert await read(slow, 1) == [status("a", 0.2)]


async def test_at_the_end_a_reader_gets_what_there_is_and_then_ends() -> None:
    watchers = Watchers()
    watching, waiting = watchers.watch(), watchers.watch()
    reading = asyncio.create_task(read(waiting, 1))
    watchers.tell(status("a"))
    assert await reading == [status("a")]
    ending = asyncio.create_task(_all(waiting))
    await asyncio.sleep(0)
    watchers.close()
    assert await _all(watching) == [status("a")]
    assert await ending == []
    assert await _all(watchers.watch()) == []


async def test_who_has_left_is_not_remembered_also_if_it_never_read() -> None:
    watchers = Watchers()
    begun, unread = watchers.watch(), watchers.watch()
    watchers.tell(status("a"))
    async with aclosing(cast("AsyncGenerator[ModelStatus, None]", begun)):
        assert await read(begun, 1) == [status("a")]
    del begun, unread
    gc.collect()
    assert len(watchers._readers) == 0


async def test_a_reader_that_is_cancelled_while_it_waits_can_leave() -> None:
    watchers = Watchers()
    reading = asyncio.create_task(read(watchers.watch(), 1))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    del reading
    gc.collect()
    assert len(watchers._readers) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.integers(0, 3)), max_size=30))
def test_whatever_its_pace_a_reader_has_seen_the_last_of_each_in_the_end(
    told: list[tuple[str, float, int]],
) -> None:
    async def watch() -> list[ModelStatus]:
        watchers = Watchers()
        reading = asyncio.create_task(_all(watchers.watch()))
        for model, progress, turns in told:
            watchers.tell(status(model, progress))
            for _ in range(turns):
                await asyncio.sleep(0)
        watchers.close()
        return await reading

    seen = asyncio.run(watch())
    assert len(seen) <= len(told)
    last = {model: status(model, progress) for model, progress, _ in told}
    assert {each.name: each for each in seen} == last


async def _all(watching: AsyncIterator[ModelStatus]) -> list[ModelStatus]:
    return [each async for each in watching]
