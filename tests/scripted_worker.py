"""A real worker process whose model follows a script: prompts and sources say what it does.

Sources: `good`, `slow`, `missing`, `broken`, `broken-start`, `crash`, `crash-later`, `slow-later`
(both once a marker file exists in the state folder), `slow-load N` (N seconds), `hang` (loads, and
never takes a step), `wrong` (counts from 1). Prompts: `count N`, `forever`, `hang` (work without a
step), `bug`, `crash`, `hang after N` (once), `crash after N` (each time), `flood N` (N chunks in
one step, for 100 steps).
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress

from headrace.imports import fast_imports

with fast_imports(hidden=["rich"]):  # as a real worker
    from headrace.engine.delivery import Delivery
    from headrace.errors import InvalidRequestError, ModelFileError
    from headrace.executors.executor import Progress
    from headrace.generation import (
        Chunk,
        EngineStats,
        GenerationRequest,
        ModelInfo,
        Prompt,
        Timing,
        Usage,
    )
    from headrace.worker.main import main
    from headrace.worker.serving import Deliver, ServingEngine
    from headrace.worker.spec import WorkerSpec

MARKER = "crash-now"
SLOW_MARKER = "slow-now"
STEP_SECONDS = 0.005
NUM_BLOCKS = 64


def info_of(model_id: str) -> ModelInfo:
    return ModelInfo(
        model_id=model_id,
        architecture="script",
        executor="script",
        precision="fp32",
        kv_cache_precision="fp32",
        max_model_len=1000,
        vocab_size=256,
        block_size=16,
        num_blocks=NUM_BLOCKS,
        has_chat_template=False,
        fingerprint="fp_script",
    )


class ScriptedEngine:
    """Takes one step for all its requests every few milliseconds."""

    def __init__(self, deliver: Deliver, source: str = "good") -> None:
        self._deliver = deliver
        self._first_number = 1 if source == "wrong" else 0
        self._running: dict[str, tuple[str, int, int]] = {}
        self._num_steps = 0
        self._num_aborted = 0
        self._hangs = source == "hang"
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_blocks=NUM_BLOCKS,
            num_free_blocks=NUM_BLOCKS - len(self._running),
            num_steps=self._num_steps,
            num_aborted=self._num_aborted,
        )

    @property
    def has_work(self) -> bool:
        return self._hangs or bool(self._running)

    async def add(self, request: GenerationRequest) -> None:
        assert isinstance(request.prompt, str)
        if request.prompt == "refuse":
            raise InvalidRequestError("refused as told", param="prompt")
        if request.prompt == "bug":
            raise ZeroDivisionError
        if request.prompt == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if request.prompt == "hang":
            self._hangs = True
        limit = request.sampling.max_tokens or sys.maxsize
        done, prompt = 0, request.prompt
        if request.answered:
            assert request.answered[0] is not None
            done = len(request.answered[0].token_ids)
            match prompt.split():
                case ["flood", size]:
                    done //= int(size)
                case ["hang", "after", _]:
                    prompt = "forever"
        self._running[request.request_id] = (prompt, done, limit)

    def abort(self, request_id: str) -> None:
        self._num_aborted += self._running.pop(request_id, None) is not None

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        assert isinstance(prompt, str)
        return [1] * add_special_tokens + list(prompt.encode())

    async def detokenize(self, token_ids: list[int]) -> str:
        if max(token_ids) > 255:
            raise InvalidRequestError("no such token", param="tokens")
        return bytes(token_ids).decode()

    async def wait_for_fault(self) -> BaseException:
        return await asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        while self._running:  # noqa: ASYNC110 - its steps are timed the same way
            await asyncio.sleep(STEP_SECONDS)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if self._running and not self._hangs:
                self._step()

    def _step(self) -> None:
        self._num_steps += 1
        deliveries = [d for request_id in list(self._running) for d in self._advance(request_id)]
        self._deliver(deliveries, self.stats)

    def _advance(self, request_id: str) -> list[Delivery]:
        prompt, done, max_tokens = self._running[request_id]
        words = prompt.split()
        self._running[request_id] = (prompt, done + 1, max_tokens)
        match words:
            case ["count", limit]:
                return [self._chunk(request_id, done, int(limit))]
            case ["flood", size]:
                limit = int(size) * 100
                first = done * int(size)
                return [self._chunk(request_id, first + i, limit) for i in range(int(size))]
            case ["hang", "after", limit] if done >= int(limit):
                self._hangs = True
            case ["crash", "after", limit] if done >= int(limit):
                os.kill(os.getpid(), signal.SIGKILL)
        return [self._chunk(request_id, done, max_tokens)]

    def _chunk(self, request_id: str, number: int, limit: int) -> Delivery:
        is_last = number + 1 >= limit
        if is_last:
            self._running.pop(request_id, None)
        chunk = Chunk(
            0,
            f"{number + self._first_number} ",
            [number % 256],
            None,
            "length" if is_last else None,
            None,
            Usage(1, number + 1) if is_last else None,
            Timing(0.0, STEP_SECONDS, STEP_SECONDS * (number + 1), 1) if is_last else None,
        )
        return Delivery(request_id, chunk)


class ScriptedModel:
    def __init__(self, spec: WorkerSpec) -> None:
        self.info = info_of(spec.model_id)
        self._source = spec.source

    def start(self, deliver: Deliver) -> ServingEngine:
        if self._source == "broken-start":
            raise RuntimeError("no engine")
        return ScriptedEngine(deliver, self._source)

    def close(self) -> None:
        pass


def load(spec: WorkerSpec, progress: Progress) -> ScriptedModel:
    progress("reading", 0.5)
    match spec.source.removeprefix("pypi:").split():  # what clients may name
        case ["missing"]:
            raise ModelFileError("/models/missing.gguf: no such file")
        case ["broken"]:
            raise RuntimeError("out of cheese")
        case ["crash"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["crash-later"] if (spec.state_dir / MARKER).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        case ["slow-later"] if (spec.state_dir / SLOW_MARKER).exists():
            time.sleep(3600)
        case ["slow-load", seconds]:
            time.sleep(float(seconds))
        case ["slow"]:
            time.sleep(3600)
    progress("reading", 1.0)
    return ScriptedModel(spec)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load=load))
