"""Runs registry and app in one event loop, from the bound socket to the last answer.

Signals are ours, not uvicorn's: the first one drains, a second one forces.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog
import uvloop

from headrace.api.trials import Trials
from headrace.endpoints import Router, RoutingConfig, UpstreamConfig, Worker
from headrace.errors import ConfigurationError
from headrace.imports import fast_imports
from headrace.registry.registry import IN_MEMORY, Registry
from headrace.registry.status import ModelStatus
from headrace.registry.workers.process import WORKER_COMMAND
from headrace.settings import ApiKeys, Settings
from headrace.telemetry.logging import configure_logging

if TYPE_CHECKING:
    from headrace.api.http_server import Http
    from headrace.routing.router import VersionRouter

log = structlog.get_logger("headrace.server")

OnProgress = Callable[[Sequence[ModelStatus]], None]
OnReady = Callable[[str], None]
StartHttp = Callable[[Registry, Trials, Settings, socket.socket], "Http"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
BACKLOG = 2048
LAST_ANSWERS_TIMEOUT = 2.0  # seconds for answers that are written but not yet read
LAST_LINES_TIME = 0.05  # seconds; the access log writes a moment after an answer's end


def serve(
    settings: Settings,
    *,
    on_progress: OnProgress = lambda _statuses: None,
    on_ready: OnReady = lambda _url: None,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> None:
    """Serve until a signal; returns when drained, SystemExit(1) when a second signal forced it.

    `on_progress` is called while models load, `on_ready` once with the URL when they answer.
    ConfigurationError when the address cannot be had; a model that cannot be loaded raises its
    own error.
    """
    telemetry = settings.telemetry
    # A person who starts a server sees its progress; a start that fails is one line of its own.
    is_watched = telemetry.log_format == "text" and telemetry.log_dir is None
    configure_logging(
        log_format=telemetry.log_format,
        log_dir=telemetry.log_dir,
        level=logging.WARNING if is_watched else logging.INFO,
    )
    listener = listen(settings.server.host, settings.server.port)
    registry = Registry(
        settings.server.state_dir,
        new_router=partial(_new_router, settings.api_keys),
        database_url=_database_url(settings),
        server=f"{settings.server.host}:{settings.server.port}",
        max_loaded_models=settings.server.max_loaded_models,
        log_format=telemetry.log_format,
        log_dir=telemetry.log_dir,
        command=worker_command,
    )
    trials = Trials(
        registry,
        database_url=_database_url(settings),
        server=f"{settings.server.host}:{settings.server.port}",
    )
    run = _Run(settings, registry, trials, listener)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run.serve(on_progress, on_ready))
    if run.is_forced:
        raise SystemExit(1)


def _database_url(settings: Settings) -> str:
    """Where the server remembers its models; one that takes any port cannot be found again."""
    if settings.storage.database_url is not None:
        return settings.storage.database_url
    if settings.server.port == 0:
        return IN_MEMORY
    path = settings.server.state_dir.absolute() / "headrace.db"
    if "?" in str(path):
        raise ConfigurationError(
            f"server.state_dir: {path} has a question mark in it, which ends a database's path; set"
            " storage.database_url",
            param="server.state_dir",
        )
    return f"sqlite:///{path}"


def _import_start_http() -> StartHttp:
    """FastAPI and uvicorn take long to import; the workers load, and are heard, meanwhile."""
    with fast_imports():
        from headrace.api.http_server import start_http  # noqa: PLC0415 - see above

    return start_http


async def _new_router(  # noqa: PLR0917 - as NewRouter has them
    keys: ApiKeys,
    model_id: str,
    config: RoutingConfig,
    workers: Sequence[Worker],
    upstreams: Sequence[UpstreamConfig],
    on_change: Callable[[], None],
) -> Router:
    """The first takes a while, for which its workers are under way."""
    make = await asyncio.to_thread(_import_router)
    return make(model_id, config, workers, upstreams, on_change, api_key=keys.of)


def _import_router() -> type["VersionRouter"]:
    from headrace.routing.router import VersionRouter  # noqa: PLC0415 - see above

    return VersionRouter


def listen(host: str, port: int) -> socket.socket:
    """Take the address before anything is loaded; ConfigurationError says why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            message = f"server.port: {port} on {host} is in use; choose another with --port."
            raise ConfigurationError(message, param="server.port") from None
        message = f"server.host: cannot listen on {host} port {port}: {exc.strerror or exc}."
        raise ConfigurationError(message, param="server.host") from None


class _Run:
    """One life of a server."""

    def __init__(
        self, settings: Settings, registry: Registry, trials: Trials, listener: socket.socket
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._trials = trials
        self._listener = listener
        self._http: Http | None = None
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    @property
    def is_forced(self) -> bool:
        return self._force.is_set()

    async def serve(self, on_progress: OnProgress, on_ready: OnReady) -> None:
        self._take_signals()
        self._registry.listen(lambda _status: on_progress(self._registry.statuses()))
        try:
            await self._registry.start(self._settings.models)
            await self._trials.start()
            start_http = await asyncio.to_thread(_import_start_http)
            self._http = http = start_http(
                self._registry, self._trials, self._settings, self._listener
            )
            http.readiness.is_leaving = self._stop.is_set()  # a signal may have come meanwhile
            gc.collect()
            gc.freeze()  # a collection amid answers then passes over all that stays
            await self._unless(self._stop, self._registry.loaded())
            if not self._stop.is_set():
                await self._unless(self._stop, http.server.listening.wait())
                on_ready(self._url)
                telemetry = self._settings.telemetry
                configure_logging(log_format=telemetry.log_format, log_dir=telemetry.log_dir)
                log.info("server.ready", url=self._url)
                await self._unless(self._stop, asyncio.shield(http.task))
                await self._drain()
        finally:
            await self._trials.close()
            await self._registry.close(drain_timeout=0)  # those that had time have had it
            if self._http is not None:
                await self._end(self._http)
            self._listener.close()
            log.info("server.stopped", forced=self.is_forced)

    async def _drain(self) -> None:
        """Take no new work after the settle window; let what was taken end."""
        server = self._settings.server
        log.info("server.draining", settle=server.shutdown_settle, timeout=server.shutdown_timeout)
        await self._unless(self._force, asyncio.sleep(server.shutdown_settle))
        await self._unless(self._force, self._registry.drain(server.shutdown_timeout))

    async def _end(self, http: "Http") -> None:
        """Give written answers a moment to leave; nothing outlives us."""
        http.server.stop(force=self.is_forced)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_TIMEOUT):
                await self._unless(self._force, asyncio.shield(http.task))
        remaining = [http.task, *http.server.server_state.tasks]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        await asyncio.sleep(LAST_LINES_TIME)

    async def _unless(self, event: asyncio.Event, work: Awaitable[object]) -> None:
        """Do the work, or leave it when the event comes first."""
        working, interrupt = asyncio.ensure_future(work), asyncio.create_task(event.wait())
        try:
            await asyncio.wait((working, interrupt), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            working.cancel()
            interrupt.cancel()
            await asyncio.wait((working, interrupt))

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signal)

    def _signal(self) -> None:
        """The first one takes us out of rotation at once; a second one ends the wait."""
        if self._http is not None:
            self._http.readiness.is_leaving = True
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    @property
    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
