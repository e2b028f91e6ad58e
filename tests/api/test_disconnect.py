import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest
import structlog
from starlette.types import Message

from headrace.api.disconnect import until_disconnect, within
from headrace.api.exchange import Exchange, attach
from headrace.errors import DeadlineError, WorkerDiedError


class Client:
    """Its end of the line: told by the connection, or by a message where there is none."""

    def __init__(self, *, has_connection: bool) -> None:
        self.left = asyncio.Event()
        self.scope = {"extensions": {"headrace.connection": self}} if has_connection else {}
        attach(self.scope, Exchange(request_id="r"))
        self.is_watched = False
        self._callback: Callable[[], None] = self.left.set

    def leave(self) -> None:
        self.left.set()
        self._callback()

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        self.is_watched = callback is not None
        self._callback = callback or self.left.set
        if self.left.is_set():
            self._callback()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    def stays_for(self, work: Coroutine[None, None, None]) -> Coroutine[None, None, bool]:
        return until_disconnect(work, self.scope, self.receive)


@pytest.fixture(params=[True, False], ids=["connection", "message"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(has_connection=request.param)


async def test_work_is_done_while_the_client_stays(client: Client) -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(True)

    assert await client.stays_for(work())
    assert done
    assert not client.is_watched


@pytest.mark.parametrize("leaves_early", [True, False])
async def test_work_ends_before_the_call_returns_when_the_client_leaves(
    client: Client, *, leaves_early: bool
) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    if leaves_early:
        client.leave()
    else:
        asyncio.get_running_loop().call_soon(client.leave)
    assert not await client.stays_for(work())
    assert ended
    await asyncio.sleep(0)  # nothing of the cancellation is left


async def test_an_error_of_the_work_is_the_callers(client: Client) -> None:
    async def work() -> None:
        raise WorkerDiedError("died")

    with pytest.raises(WorkerDiedError):
        await client.stays_for(work())


async def test_what_fails_because_the_client_left_is_told_to_nobody(client: Client) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise WorkerDiedError("died")

    asyncio.get_running_loop().call_soon(client.leave)
    assert not await client.stays_for(work())


async def test_a_fault_of_ours_is_told_even_when_the_client_has_left(client: Client) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("ours")

    asyncio.get_running_loop().call_soon(client.leave)
    with structlog.testing.capture_logs() as lines:
        assert not await client.stays_for(work())
    (line,) = lines
    assert (line["event"], line["request_id"]) == ("request.fault", "r")
    assert line["exc_info"]


@pytest.mark.parametrize("client_leaves_too", [True, False])
async def test_cancelling_the_call_cancels_the_work(
    client: Client, *, client_leaves_too: bool
) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.create_task(client.stays_for(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if client_leaves_too:
        client.leave()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def test_a_client_that_leaves_at_the_deadline_does_no_harm(client: Client) -> None:
    async def work() -> None:
        with within(time.monotonic()):
            asyncio.get_running_loop().call_soon(client.leave)
            await asyncio.Event().wait()

    with suppress(DeadlineError):
        assert not await client.stays_for(work())
    await asyncio.sleep(0)


async def test_a_deadline_in_the_past_ends_the_block_at_its_first_wait() -> None:
    with pytest.raises(DeadlineError), within(time.monotonic() - 1):
        await asyncio.sleep(60)


async def test_a_timeout_of_something_else_is_not_called_a_deadline() -> None:
    with pytest.raises(TimeoutError), within(time.monotonic() + 60):
        raise TimeoutError
