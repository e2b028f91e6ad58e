"""The real server as its users start it: a process of its own, on a port that it chose."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

MODEL = "smollm2"
_URL = re.compile(r"http://127\.0\.0\.1:\d+")


def cache_dir() -> Path:
    """Where tests keep downloaded models between runs."""
    named = os.environ.get("HEADRACE_TEST_CACHE")
    folder = Path(named) if named else Path("~/.cache/headrace-tests").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *arguments]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings that a developer may have put there."""
    kept = {k: v for k, v in os.environ.items() if not (k.startswith("HEADRACE_") and "__" in k)}
    return kept | {"PYTHONUNBUFFERED": "1"} | extra


def children(pid: int) -> list[int]:
    """The processes below `pid`; empty once it is gone."""
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [found for child in map(int, direct) for found in (child, *children(child))]


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class RealServer:
    """Ready once entered; killed with everything below it when left."""

    def __init__(
        self,
        sources: Sequence[str] = (MODEL,),
        *flags: str,
        state_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = command(
            "serve", *sources, "--port", "0", "--state-dir", str(state_dir or cache_dir()), *flags
        )
        self._env = environment(**(env or {}))
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed with the server
        self.url = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._env,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = _URL.search(line)
            if found:
                self.url = found[0]
                return self
        code = self.process.wait()
        log = self.log()
        self._close()
        raise AssertionError(f"the server ended with {code} before it was ready:\n{log}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log())
        if self.process.poll() is None:
            for pid in (self.process.pid, *children(self.process.pid)):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self._close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[int]:
        """The processes that run models."""
        return [pid for pid in children(self.pid) if b"headrace.worker" in _command_line(pid)]

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = httpx.get(f"{self.url}/metrics").raise_for_status().text
        lines = [line for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line)]
        assert lines, f"no metric {name}"
        return sum(float(line.rsplit(maxsplit=1)[1]) for line in lines)

    def _close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
