import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop
from yarl import URL

from headrace.routing.http.client import HttpClient
from routing.upstream.misbehaving_server import MisbehavingServer, Script

Serve = Callable[[Script], Awaitable[tuple[HttpClient, MisbehavingServer]]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server runs on uvloop; whoever embeds us may run on asyncio's."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server that follows a script, and a client that talks to it."""
    async with AsyncExitStack() as stack:

        async def begin(script: Script) -> tuple[HttpClient, MisbehavingServer]:
            server = await stack.enter_async_context(MisbehavingServer(script))
            headers: dict[str, Any] = {"X-Key": "k"}
            client = HttpClient(URL(server.url), None, headers=headers, connect_timeout=5.0)
            stack.push_async_callback(client.close)
            return client, server

        yield begin
