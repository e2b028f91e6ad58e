import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.scripted import ScriptedRegistry
from headrace.api.server import listen, serve
from headrace.errors import ConfigurationError, ModelFileError
from headrace.settings import Settings

SERVER = Path(__file__).with_name("scripted_server.py")


@dataclass
class Process:
    url: str
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)

    async def leaves(self) -> None:
        """Wait until readiness says so."""
        await self.until("/health/ready", lambda answer: answer.status_code == 503)

    async def until(self, path: str, condition: Callable[[httpx.Response], bool]) -> httpx.Response:
        async with asyncio.timeout(10):
            while not condition(answer := await self.http.get(path)):  # noqa: ASYNC110  # another process has no event
                await asyncio.sleep(0.01)
        return answer


@contextlib.asynccontextmanager
async def started(
    tmp_path: Path, *, settle: float = 0.0, patience: float = 20
) -> AsyncIterator[Process]:
    arguments = [str(SERVER), str(tmp_path), "0", str(settle), str(patience)]
    with (tmp_path / "stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        async with httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http:
            yield Process(url, process, http)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def generate(http: httpx.AsyncClient, prompt: str = "x") -> asyncio.Task[httpx.Response]:
    body = {"prompt": prompt, "stream": True}
    return asyncio.create_task(http.post("/api/v1/generate", json=body))


async def begun(server: Process, count: int = 1) -> None:
    gauge = f"headrace_http_requests_in_flight {count + 1}.0"  # the question itself is one
    await server.until("/metrics", lambda answer: gauge in answer.text)


async def test_a_signal_lets_running_requests_end_and_refuses_new_ones(tmp_path: Path) -> None:
    async with started(tmp_path) as server:
        running = [generate(server.http) for _ in range(5)]
        await begun(server, 5)
        server.signal()
        await server.leaves()
        refused = await generate(server.http)
        assert refused.json()["error"]["code"] == "draining"
        assert refused.headers["retry-after"] == "2"
        assert (await server.http.get("/health/live")).status_code == 200
        answers = await asyncio.gather(*running)
        assert all('"finish_reason":"stop"' in answer.text for answer in answers)
        assert await server.ended() == 0


async def test_new_requests_are_taken_during_the_settle_window(tmp_path: Path) -> None:
    async with started(tmp_path, settle=2.0) as server:
        server.signal()
        await server.leaves()
        late = await generate(server.http)
        assert '"finish_reason":"stop"' in late.text
        assert await server.ended() == 0


async def test_what_does_not_end_in_time_is_cut_off_honestly(tmp_path: Path) -> None:
    async with started(tmp_path, patience=0.3) as server:
        running = generate(server.http, "forever")
        await begun(server)
        server.signal()
        with contextlib.suppress(httpx.HTTPError):
            assert '"finish_reason":"' not in (await running).text
        assert await server.ended() == 0


@pytest.mark.parametrize("forced", [False, True])
async def test_the_last_answers_have_their_lines_in_the_log(
    tmp_path: Path, *, forced: bool
) -> None:
    async with started(tmp_path) as server:
        running = generate(server.http, "forever" if forced else "x")
        await begun(server)
        server.signal()
        if forced:
            await server.leaves()
            server.signal()
        await server.ended()
        await asyncio.gather(running, return_exceptions=True)
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert [line for line in lines if "http.request" in line and "/api/v1/generate" in line]


async def test_a_second_signal_forces(tmp_path: Path) -> None:
    async with started(tmp_path, patience=60) as server:
        running = generate(server.http, "forever")
        await begun(server)
        server.signal()
        await server.leaves()
        server.signal()
        assert await server.ended() == 1
        with contextlib.suppress(httpx.HTTPError):
            assert '"finish_reason":"' not in (await running).text


async def test_a_keep_alive_connection_does_not_hold_the_server_up(tmp_path: Path) -> None:
    async with started(tmp_path) as server:
        await server.http.get("/health/live")
        server.signal()
        assert await server.ended() == 0


def test_a_port_in_use_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"{port} on 127\.0\.0\.1 is in use"):
            listen("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_one_clear_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1") as caught:
        listen("192.0.2.1", 0)
    assert caught.value.param == "server.host"


def test_a_model_that_cannot_be_loaded_stops_the_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ScriptedRegistry):
        async def loaded(self) -> None:
            raise ModelFileError("missing.gguf: no such file")

    monkeypatch.setattr("headrace.api.server.Registry", lambda *_a, **_k: Failing())
    with pytest.raises(ModelFileError, match="missing"):
        serve(settings)
