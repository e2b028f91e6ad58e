"""The app on uvicorn, which leaves signals to us. Slow to import: workers load meanwhile."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from headrace.api.app import create_app
from headrace.api.connection import StreamingProtocol
from headrace.api.serving import Readiness
from headrace.api.trials import Trials
from headrace.registry.registry import Registry
from headrace.settings import Settings

KEEP_ALIVE = 75  # seconds; longer than the idle time of common clients' pools


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, and with word of when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Renew the date of answers each second; uvicorn itself looks ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopping.wait()

    def stop(self, *, force: bool) -> None:
        """Listen no longer and let answers end; by force, not even that."""
        self.should_exit = True
        self.force_exit = force
        self._stopping.set()


@dataclass(frozen=True, slots=True)
class Http:
    """A server that runs, the task that runs it, and whether it wants traffic."""

    server: HttpServer
    task: asyncio.Task[None]
    readiness: Readiness


def start_http(
    registry: Registry, trials: Trials, settings: Settings, listener: socket.socket
) -> Http:
    """Begin to answer on the listener; the caller owns the task."""
    readiness = Readiness()
    config = uvicorn.Config(
        create_app(registry, trials, settings, readiness=readiness),
        http=StreamingProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here asks who or how the client is
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = HttpServer(config)
    return Http(server, asyncio.create_task(server.serve([listener])), readiness)
