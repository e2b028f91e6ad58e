import asyncio
import time

import pytest

from headrace.api.disconnect import until_disconnect, within
from headrace.errors import DeadlineError, WorkerDiedError


async def stays() -> dict[str, str]:
    await asyncio.Event().wait()
    raise AssertionError


async def leaves() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def test_work_is_done_while_the_client_stays() -> None:
    done = []

    async def work() -> None:
        done.append(True)

    assert await until_disconnect(work(), {}, stays)
    assert done


async def test_work_ends_before_the_call_returns_when_the_client_leaves() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    assert not await until_disconnect(work(), {}, leaves)
    assert ended


async def test_an_error_of_the_work_is_the_callers() -> None:
    async def work() -> None:
        raise WorkerDiedError("died")

    with pytest.raises(WorkerDiedError):
        await until_disconnect(work(), {}, stays)


async def test_cancelling_the_call_cancels_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.create_task(until_disconnect(work(), {}, stays))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def test_a_deadline_in_the_past_ends_the_block_at_its_first_wait() -> None:
    with pytest.raises(DeadlineError):
        async with within(time.monotonic() - 1):
            await asyncio.sleep(60)


async def test_a_timeout_of_something_else_is_not_called_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        async with within(time.monotonic() + 60):
            raise TimeoutError
