"""What can stand between the load and the stub, and how each is started on one core."""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import machine
from harness.client import STATUS_OK, HttpClient
from harness.peers import HERE, MODEL, MissingPeerError, free_port
from harness.processes import tree_cpu_seconds
from harness.systems import Command, StartError

START_LIMIT = 60.0  # seconds
POLL_INTERVAL = 0.02
PACKAGES = ("headrace", "uvicorn", "uvloop", "starlette", "aiohttp")

NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  keepalive_requests 1000000000;
  upstream stub {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://stub;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


HEADRACE = """\
[server]
port = {port}
state_dir = "{folder}/headrace"
[telemetry]
log_format = "json"
[[models]]
name = "{model}"
source = "{upstream}/v1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What starting a gateway takes: where its files go, the server behind it, and its core."""

    folder: Path
    upstream: str
    core: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One place to send requests to. Where nothing stands between, there is no command."""

    name: str
    url: str
    command: Command | None = None

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far, of all its processes."""
        if self.command is None or self.command.process is None:
            return 0.0
        return tree_cpu_seconds(self.command.process.pid)

    async def start(self) -> None:
        """Return when it answers for its health."""
        if self.command is None:
            return
        await self.command.start()
        http = HttpClient(self.url, timeout=START_LIMIT)
        try:
            await self._until_healthy(http, self.command)
        finally:
            http.close()

    async def close(self) -> None:
        if self.command is not None:
            await self.command.close()

    async def _until_healthy(self, http: HttpClient, command: Command) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not await _is_healthy(http):
            command.check()
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} gave no answer in {START_LIMIT:.0f} s")
            await asyncio.sleep(POLL_INTERVAL)


def create(name: str, setup: Setup) -> Gateway:
    return GATEWAYS[name](name, setup)


def on_core(core: int, *arguments: str) -> list[str]:
    """The command, bound to one core with all that it starts."""
    return ["taskset", "--cpu-list", str(core), *arguments]


def direct(name: str, setup: Setup) -> Gateway:
    return Gateway(name=name, url=setup.upstream)


def nginx(name: str, setup: Setup) -> Gateway:
    binary = shutil.which("nginx")
    if binary is None:
        raise MissingPeerError("`apt-get install nginx-light` would make it run")
    port, folder = free_port(), setup.folder.resolve()
    config = folder / "nginx.conf"
    upstream = setup.upstream.removeprefix("http://")
    config.write_text(NGINX.format(folder=folder, port=port, upstream=upstream))
    return _gateway(name, setup, port, binary, "-c", str(config))


def bare_proxy(name: str, setup: Setup) -> Gateway:
    if importlib.util.find_spec("aiohttp") is None:
        raise MissingPeerError("`pip install aiohttp` would make it run")
    port = free_port()
    module = ("-m", "harness.bare_proxy", str(port), setup.upstream)
    return _gateway(name, setup, port, sys.executable, *module)


def headrace(name: str, setup: Setup) -> Gateway:
    """As it is served to others, a line of its log for each request included."""
    port, folder = free_port(), setup.folder.resolve()
    config = folder / "gateway.toml"
    config.write_text(
        HEADRACE.format(port=port, folder=folder, model=MODEL, upstream=setup.upstream)
    )
    serve = ("-m", "headrace", "serve", "--config", str(config))
    return _gateway(name, setup, port, sys.executable, *serve)


GATEWAYS: dict[str, Callable[[str, Setup], Gateway]] = {
    "direct": direct,
    "nginx": nginx,
    "starlette+aiohttp": bare_proxy,
    "headrace": headrace,
}


def versions() -> dict[str, str]:
    return {**machine.versions(PACKAGES), **_nginx_version()}


def _gateway(name: str, setup: Setup, port: int, *arguments: str) -> Gateway:
    command = Command(
        arguments=on_core(setup.core, *arguments),
        log=setup.folder / f"{name}.log",
        environment={"PYTHONPATH": os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))},
    )
    return Gateway(name=name, url=f"http://127.0.0.1:{port}", command=command)


def _nginx_version() -> dict[str, str]:
    binary = shutil.which("nginx")
    if binary is None:
        return {}
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=True).stderr
    return {"nginx": said.strip().rpartition("/")[2]}


async def _is_healthy(http: HttpClient) -> bool:
    try:
        status, _ = await http.get("/health")
    except OSError:
        return False
    return status == STATUS_OK
