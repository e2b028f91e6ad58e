"""Says how much memory a model's workers will hold: `sizing` asks, this module run as main answers.

In a process of its own, because files are mapped to look at them: one that is cut short meanwhile
ends that process and not the server, and the server needs no libraries for it.
"""

import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout

import msgspec

from headrace.errors import HeadraceError, ModelFileError
from headrace.modelfiles.sources import cached
from headrace.worker import frames
from headrace.worker.spec import WorkerSpec

TIMEOUT = 10.0  # seconds; it takes about one, and a server that ends waits for it
_REFUSED = 3  # the exit status that goes with a reason


class Sizes(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that workers share, and bytes of each."""

    shared: int
    each: int

    def of_workers(self, count: int) -> int:
        return self.shared + self.each * count


def sizing(spec: WorkerSpec) -> Sizes | None:
    """Ask, blocking; None when the model is not downloaded yet.

    ModelFileError and ConfigurationError are those that the load would end with.
    """
    if cached(spec.source, spec.state_dir) is None:
        return None
    done = _run(frames.encode(frames.Load(spec)), spec)
    if done.returncode == _REFUSED:
        refused = frames.FROM_WORKER.decode(done.stdout)
        assert isinstance(refused, frames.Failed), "the only frame that this process writes"
        raise refused.error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelFileError(f"{spec.source}: cannot be measured: {_ending(done.returncode, last)}")
    return msgspec.msgpack.decode(done.stdout, type=Sizes)


def main() -> int:
    """Read a `Load` from stdin and write what `sizing` wants to stdout."""
    out = sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # whoever logs must not garble the answer
        frame = frames.TO_WORKER.decode(sys.stdin.buffer.read())
        assert isinstance(frame, frames.Load), "the only frame that this process reads"
        try:
            out.write(msgspec.msgpack.encode(_measured(frame.spec)))
        except HeadraceError as error:
            out.write(frames.encode(frames.Failed(error)))
            return _REFUSED
    return 0


def _run(request: bytes, spec: WorkerSpec) -> subprocess.CompletedProcess[bytes]:
    module = [sys.executable, "-m", "headrace.parent", str(os.getpid()), "headrace.worker.sizing"]
    try:
        return subprocess.run(  # noqa: S603 - no word of it is the user's
            module, input=request, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"{spec.source}: cannot be measured: no answer in {TIMEOUT:g} seconds"
        ) from None


def _measured(spec: WorkerSpec) -> Sizes:
    from headrace.executors.footprint import footprint  # noqa: PLC0415 - only in the process made for it

    path = cached(spec.source, spec.state_dir)
    assert path is not None, "it was there when the process was started"
    found = footprint(path, spec.executor)
    return Sizes(found.shared_bytes, found.total - found.shared_bytes)


def _ending(status: int, last: str) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return last or f"exited with status {status}"


if __name__ == "__main__":
    sys.exit(main())
