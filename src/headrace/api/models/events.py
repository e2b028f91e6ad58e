"""Server-sent events: each version as it is, then each change. Ends with the registry."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeVar, cast

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.api.disconnect import until_disconnect
from headrace.api.models.schema import model_of
from headrace.api.sending import EVENT_STREAM_HEADERS, OK
from headrace.errors import UnavailableError
from headrace.registry.registry import Registry
from headrace.registry.status import ModelStatus

MAX_READERS = 100
KEEP_ALIVE = 15.0  # seconds; proxies end what is silent for longer
SLOWEST_READER = 60.0  # seconds to make room for one more event

T = TypeVar("T")

_END = object()


class ModelEvents:
    """The answer to every reader: an ASGI app. A slow one misses steps, never the last state."""

    def __init__(self, registry: Registry, *, keep_alive: float = KEEP_ALIVE) -> None:
        self._registry = registry
        self._keep_alive = keep_alive
        self._num_readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._num_readers >= MAX_READERS:
            raise UnavailableError(f"{MAX_READERS} others watch already.", retry_after=KEEP_ALIVE)
        self._num_readers += 1
        try:
            # A reader leaves when it has seen enough; that is no request cut short.
            await until_disconnect(self._answer(send), scope, receive)
        finally:
            self._num_readers -= 1

    async def _answer(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": OK, "headers": EVENT_STREAM_HEADERS}
        await send(head)
        async with aclosing(self._events()) as events:
            async for event in events:
                try:
                    async with asyncio.timeout(SLOWEST_READER):
                        await _send(send, event)
                except TimeoutError:
                    return  # it does not read; the connection is closed without an end
        await _send(send, b"", more=False)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        # Before what there is: what changes meanwhile is told twice instead of never.
        changes = cast("AsyncGenerator[ModelStatus, None]", self._registry.watch())
        async with aclosing(changes), aclosing(with_pauses(changes, self._keep_alive)) as news:
            for status in self._registry.statuses():
                yield _event(status)
            async for change in news:
                yield b": \n\n" if change is None else _event(change)


async def with_pauses(items: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """The items as they come, and None after each span of `seconds` without one."""
    while True:
        coming = asyncio.ensure_future(anext(items, _END))
        try:
            while not (await asyncio.wait((coming,), timeout=seconds))[0]:
                yield None
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        item = coming.result()
        if item is _END:
            return
        yield cast("T", item)


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _event(status: ModelStatus) -> bytes:
    return b"event: model\ndata: %b\n\n" % msgspec.json.encode(model_of(status))
