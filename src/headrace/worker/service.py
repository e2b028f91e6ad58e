"""The worker's side of the conversation.

The event loop only moves frames: the model loads in one thread and steps in another, so heartbeats
tell the truth about both.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine

import structlog

from headrace.engine.delivery import Delivery
from headrace.errors import HeadraceError
from headrace.generation import EngineStats, GenerationRequest
from headrace.telemetry.logging import configure_logging
from headrace.worker import frames
from headrace.worker.channel import Channel
from headrace.worker.memory import resident_bytes
from headrace.worker.serving import Load, LoadedModel, ServingEngine
from headrace.worker.spec import WorkerSpec

LOADER_THREAD = "headrace-load"
PROGRESS_GRAIN = 0.01

log = structlog.get_logger("headrace.worker")


class Service:
    """Answers each frame. Owns the engine and every task that it starts."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._model: LoadedModel | None = None
        self._engine: ServingEngine | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._adding: dict[str, asyncio.Task[None]] = {}
        self._is_draining = False
        self._progress = ("", 0.0)
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()

    def greet(self, channel: Channel[frames.ToWorker]) -> None:
        self._channel = channel
        self._send(frames.Hello(os.getpid()))

    def receive(self, frame: frames.ToWorker) -> None:
        match frame:
            case frames.Generate():
                self._generate(frame.request)
            case frames.Abort():
                self._abort(frame.request_ids)
            case frames.Tokenize() | frames.Detokenize():
                self._start(self._reply(frame))
            case frames.Load():
                self._begin_to_load(frame.spec)
            case frames.Drain():
                self._drain()
            case frames.Stop():
                self._end_with(0)

    def beat(self) -> None:
        engine = self._engine
        stats = EngineStats() if engine is None else engine.stats
        has_work = engine is not None and engine.has_work
        self._send(frames.Heartbeat(stats.num_steps, has_work, resident_bytes(), stats))

    def terminate(self) -> None:
        """SIGTERM: the first drains, the second ends."""
        if self._is_draining:
            self._end_with(0)
        else:
            self._drain()

    def channel_broke(self, reason: str) -> None:
        log.error("worker.channel_broke", reason=reason)
        self._end_with(1)

    def parent_left(self) -> None:
        self._end_with(1)

    async def ended(self) -> int:
        """Wait for the end and return the exit status."""
        return await self._end

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()
        if self._model is not None:
            self._model.close()

    def _send(self, frame: frames.FromWorker) -> None:
        self._channel.send(frames.encode(frame))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Loading

    def _begin_to_load(self, spec: WorkerSpec) -> None:
        configure_logging(log_format=spec.log_format, log_dir=spec.log_dir, file_name=spec.log_file)
        structlog.contextvars.bind_contextvars(model=spec.model_id)
        threading.Thread(
            target=self._load_in_thread, args=(spec,), name=LOADER_THREAD, daemon=True
        ).start()

    def _load_in_thread(self, spec: WorkerSpec) -> None:
        try:
            loaded = self._load(spec, self._report_progress)
        except HeadraceError as error:
            self._call_on_loop(self._load_failed, error)
        except Exception as error:  # noqa: BLE001 - whatever failed, the parent must be told why
            self._call_on_loop(self._load_broke, error)
        else:
            self._call_on_loop(self._load_done, loaded)

    def _report_progress(self, phase: str, share: float) -> None:
        """Runs in the loading thread, as often as that one likes to call it."""
        last_phase, last_share = self._progress
        if phase != last_phase or share >= min(1.0, last_share + PROGRESS_GRAIN):
            self._progress = (phase, share)
            self._call_on_loop(self._send, frames.Progress(phase, share))

    def _call_on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():  # after a Stop nobody waits for the load
            self._loop.call_soon_threadsafe(function, *arguments)

    def _load_failed(self, error: HeadraceError) -> None:
        self._send(frames.Failed(error))

    def _load_broke(self, error: Exception) -> None:
        log.error("model.load_broke", exc_info=error)
        self._load_failed(HeadraceError(f"{type(error).__name__}: {error}"))

    def _load_done(self, loaded: LoadedModel) -> None:
        self._model = loaded
        try:
            self._engine = loaded.start(self._deliver)
        except Exception as error:  # noqa: BLE001 - as above
            self._load_broke(error)
        else:
            self._start(self._end_at_fault(self._engine))
            self._send(frames.Ready(loaded.info))

    # Serving

    def _generate(self, request: GenerationRequest) -> None:
        task = self._start(self._add(request))
        self._adding[request.request_id] = task
        task.add_done_callback(lambda _: self._adding.pop(request.request_id))

    async def _add(self, request: GenerationRequest) -> None:
        engine = self._serving()
        try:
            await engine.add(request)
        except Exception as exc:  # noqa: BLE001 - whatever failed, the caller waits for an answer
            self._deliver([Delivery(request.request_id, None, _told(exc))], engine.stats)

    def _deliver(self, deliveries: list[Delivery], stats: EngineStats) -> None:
        self._send(frames.Step(deliveries, stats))

    def _abort(self, request_ids: list[str]) -> None:
        engine = self._serving()
        for request_id in request_ids:
            if (task := self._adding.get(request_id)) is not None:
                task.cancel()
            engine.abort(request_id)

    async def _reply(self, frame: frames.Tokenize | frames.Detokenize) -> None:
        try:
            self._send(frames.Reply(frame.call_id, await self._result(frame)))
        except Exception as exc:  # noqa: BLE001 - the same
            self._send(frames.Reply(frame.call_id, None, _told(exc)))

    async def _result(self, frame: frames.Tokenize | frames.Detokenize) -> list[int] | str:
        engine = self._serving()
        if isinstance(frame, frames.Detokenize):
            return await engine.detokenize(frame.token_ids)
        return await engine.tokenize(frame.prompt, add_special_tokens=frame.add_special_tokens)

    def _serving(self) -> ServingEngine:
        assert self._engine is not None, "the parent sends work only after Ready"
        return self._engine

    # Ending

    def _drain(self) -> None:
        self._is_draining = True
        if self._engine is None:
            self._end_with(0)
        else:
            self._start(self._finish_and_end(self._engine))

    async def _end_at_fault(self, engine: ServingEngine) -> None:
        log.error("engine.failed", exc_info=await engine.wait_for_fault())
        self._end_with(1)

    async def _finish_and_end(self, engine: ServingEngine) -> None:
        await engine.drain()
        self._end_with(0)

    def _end_with(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)


def _told(exc: Exception) -> HeadraceError:
    """What the caller is told; a fault of ours is logged, with its details."""
    if isinstance(exc, HeadraceError):
        return exc
    log.error("request.failed", exc_info=exc)
    return HeadraceError("the model's process failed on this request")
