"""The worker process: arguments, signals, and how it ends."""

import argparse
import asyncio
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from headrace import parent
from headrace.executors.executor import Progress
from headrace.imports import fast_imports
from headrace.modelfiles.pip import end_downloads
from headrace.worker import frames
from headrace.worker.channel import Channel
from headrace.worker.service import LOADER_THREAD, Service
from headrace.worker.serving import Load, LoadedModel
from headrace.worker.spec import WorkerSpec

HEARTBEAT_INTERVAL = 1.0  # seconds
LAST_WORDS = 1.0  # seconds for what a busy parent has not read yet
TIDY_UP = 1.0  # seconds; less than a supervisor waits before SIGKILL


def main(arguments: Sequence[str], *, load: Load | None = None) -> int:
    """Serve one model until told to end; the exit status is 1 if its channel broke or ended."""
    parser = argparse.ArgumentParser(prog="headrace.worker", description=__doc__)
    parser.add_argument("--socket", required=True, type=int, metavar="DESCRIPTOR")
    parser.add_argument("--parent", required=True, type=int, metavar="PID")
    options = parser.parse_args(arguments)
    parent.die_with(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to judge
    if load is None:
        # What takes long to import is on its way while the parent says what to load.
        threading.Thread(target=_import_loading, name=LOADER_THREAD, daemon=True).start()
    loading = partial(_load_and_freeze, load or _load)
    status = asyncio.run(_serve(options.socket, options.parent, loading))
    if loader := next((t for t in threading.enumerate() if t.name == LOADER_THREAD), None):
        if end_downloads():
            loader.join(TIDY_UP)  # it removes what it had downloaded so far
        sys.stderr.flush()
        os._exit(status)  # a load that was given up cannot be interrupted
    return status


def _import_loading() -> None:
    # Not OpenVINO's converters of other formats, and the telemetry that comes with them.
    with fast_imports(hidden=["openvino.tools.ovc"]):
        importlib.import_module("headrace.worker.loading")


def _load(spec: WorkerSpec, progress: Progress) -> LoadedModel:
    from headrace.worker.loading import load  # noqa: PLC0415 - slow to import: in the load's thread

    return load(spec, progress)


def _load_and_freeze(load: Load, spec: WorkerSpec, progress: Progress) -> LoadedModel:
    loaded = load(spec, progress)
    gc.collect()
    gc.freeze()  # a collection amid tokens then passes over all that stays
    return loaded


async def _serve(descriptor: int, parent_pid: int, load: Load) -> int:
    inherited = socket.socket(fileno=descriptor)
    inherited.set_inheritable(False)
    service = Service(load)
    channel = Channel(
        inherited,
        frames.TO_WORKER,
        receive=service.receive,
        broken=service.channel_broke,
        hung_up=service.parent_left,
    )
    service.greet(channel)
    loop = asyncio.get_running_loop()
    _on_sigterm(loop, service.terminate)
    heart = loop.create_task(_beat(service, parent_pid))
    try:
        return await service.ended()
    finally:
        heart.cancel()
        await service.close()
        channel.send_rest(LAST_WORDS)
        channel.close()


def _on_sigterm(loop: asyncio.AbstractEventLoop, terminate: Callable[[], None]) -> None:
    # Not the loop's own handler, which leaves with the loop: a signal that comes late, as after
    # Stop, would then kill the process before it has tidied up.
    def handle(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(terminate)

    signal.signal(signal.SIGTERM, handle)


async def _beat(service: Service, parent_pid: int) -> None:
    while True:
        parent.exit_if_orphaned(parent_pid)
        service.beat()
        await asyncio.sleep(HEARTBEAT_INTERVAL)
