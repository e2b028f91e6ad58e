"""One worker process with its channel, from start to reaped."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.worker import frames
from headrace.worker.channel import Channel

WORKER_COMMAND = (sys.executable, "-m", "headrace.worker")
STDERR = 2


class WorkerProcess:
    """A child that has been started; `end` leaves neither a process nor a socket behind."""

    def __init__(self, process: Process, channel: Channel[frames.FromWorker]) -> None:
        self._process = process
        self.channel = channel
        self._exit = asyncio.create_task(process.wait(), name=f"worker-exit-{process.pid}")

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        receive: Callable[[frames.FromWorker], None],
        broken: Callable[[str], None],
    ) -> "WorkerProcess":
        """Raises OSError when the process cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--socket", str(theirs.fileno()), "--parent", str(os.getpid())),
                    stdin=DEVNULL,
                    stdout=STDERR,  # what a library prints must not mix with our own output
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
                )
        except BaseException:
            ours.close()
            raise
        # Its hanging up says less than how it ended, which is awaited anyway.
        return cls(process, Channel(ours, frames.FROM_WORKER, receive=receive, broken=broken))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        return self._exit.done()

    def on_exit(self, callback: Callable[[], None]) -> None:
        self._exit.add_done_callback(lambda _: callback())

    def send(self, frame: frames.ToWorker) -> None:
        self.channel.send(frames.encode(frame))

    async def stop(self, *, drain: float, termination: float) -> None:
        """Ask it to drain and leave; ask it to leave; make it leave."""
        self.send(frames.Drain())
        if not await self._exits_within(drain):
            self.send(frames.Stop())
            self._signal(signal.SIGTERM)
            if not await self._exits_within(termination):
                self._signal(signal.SIGKILL)

    async def end(self) -> str:
        """Make sure that it is gone, take what it said last, and return how it ended."""
        self._signal(signal.SIGKILL)
        status = await self._exit
        self.channel.receive_rest()
        self.channel.close()
        return _describe(status)

    async def _exits_within(self, seconds: float) -> bool:
        await asyncio.wait([self._exit], timeout=seconds)
        return self.has_exited

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_exited:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _describe(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"
