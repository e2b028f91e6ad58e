"""A system under load: a server behind HTTP, or a library in a child process.

Each is started, measured and stopped here; which command it takes is the business of `peers`.
"""

import asyncio
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from harness.client import CompletionClient, HttpClient
from harness.load import Load, Run, closed_loop

START_LIMIT = 900.0  # seconds; vLLM compiles for many minutes on a small machine that is busy
STOP_LIMIT = 20.0
POLL_INTERVAL = 0.02


class StartError(Exception):
    """A system did not come up; the message says where its log is."""


class System(Protocol):
    """Something that continues prompts. `pid` is None for a server that somebody else runs."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @abstractmethod
    async def start(self) -> None:
        """Return when the first answer has been given."""

    @abstractmethod
    async def run(self, load: Load) -> Run: ...

    @abstractmethod
    async def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Command:
    """A process in a session of its own, its output in a log file."""

    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    async def start(self, *, piped: bool = False) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE if piped else None
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.arguments,
                stdin=pipe or asyncio.subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
                limit=1 << 28,  # a run comes back as one line
            )
        return self.process

    def check(self) -> None:
        if self.process is not None and self.process.returncode is not None:
            code, said = self.process.returncode, last_line(self.log)
            raise StartError(f"ended with code {code}, last words {said!r}; see {self.log}")

    async def close(self) -> None:
        """Ask the process to end; end its whole session when it does not, or when cancelled."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_LIMIT):
                    await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def last_line(log: Path) -> str:
    """What a process said last, as far as one line tells it."""
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Server:
    """A server that speaks the OpenAI API, started by a command or already running."""

    def __init__(
        self,
        name: str,
        url: str,
        model: str,
        *,
        command: Command | None = None,
        fields: dict[str, Any] | None = None,
        health_path: str | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.health_path = health_path
        self._command = command
        self._http = HttpClient(url)
        self._client = CompletionClient(self._http, model, fields)

    @property
    def pid(self) -> int | None:
        process = self._command.process if self._command else None
        return process.pid if process else None

    async def start(self) -> None:
        if self._command is not None:
            await self._command.start()
        deadline = time.monotonic() + START_LIMIT
        error: str | None = "no answer"
        while error is not None:
            if time.monotonic() > deadline:
                raise StartError(f"gave no answer in {START_LIMIT:.0f} s: {error}")
            error = await self._first_error()

    async def run(self, load: Load) -> Run:
        return await closed_loop(
            lambda prompt: self._client.complete(prompt, load.output_tokens), load
        )

    async def close(self) -> None:
        self._http.close()
        if self._command is not None:
            await self._command.close()

    async def _first_error(self) -> str | None:
        sample = await self._client.complete([1, 2, 3], 1)
        if sample.completion_tokens:
            return None
        if self._command is not None:
            self._command.check()
        if sample.is_final:
            raise StartError(f"refused the first request: {sample.error}")
        await asyncio.sleep(POLL_INTERVAL)
        return sample.error


class Library:
    """A library driven in a child process: one line of JSON in, one out, for each run."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self._command = command

    @property
    def pid(self) -> int | None:
        return self._command.process.pid if self._command.process else None

    async def start(self) -> None:
        process = await self._command.start(piped=True)
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_LIMIT)
        except TimeoutError:
            raise StartError(f"gave no answer in {START_LIMIT:.0f} s") from None
        if line.strip() != b"ready":
            await process.wait()
            self._command.check()

    async def run(self, load: Load) -> Run:
        process = self._command.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(load) + b"\n")
        line = await process.stdout.readline()
        if not line:
            await process.wait()
            self._command.check()
        return msgspec.json.decode(line, type=Run)

    async def close(self) -> None:
        await self._command.close()
