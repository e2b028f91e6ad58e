from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace.endpoints import UpstreamConfig
from headrace.routing.upstream.upstream import Upstream
from routing.upstream.misbehaving_server import MisbehavingServer, Script

KEY = "sk-very-secret-0123456789"

Start = Callable[..., Awaitable[tuple[Upstream, MisbehavingServer]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a server that follows a script, and an upstream that talks to it."""
    async with AsyncExitStack() as stack:

        async def begin(script: Script, **options: Any) -> tuple[Upstream, MisbehavingServer]:
            server = await stack.enter_async_context(
                MisbehavingServer(script, options.pop("tls", None))
            )
            options = {"name": "up", "model": "m", "dialect": "vllm", **options}
            config = UpstreamConfig(url=server.url, **options)
            return await stack.enter_async_context(Upstream(config, KEY)), server

        yield begin
