"""Drives an engine from an event loop: a thread of its own steps it and delivers.

Everything public belongs to the loop; only `_run` and what it calls run in the thread. Between the
two are deques, whose ends are safe to use from two threads. The loop looks into its own when it has
something to do anyway: waking it costs more than a step's Python.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import structlog

from headrace.engine.delivery import Delivery
from headrace.engine.engine import Engine
from headrace.engine.queue_bound import QueueBound
from headrace.engine.vocabulary import Vocabulary
from headrace.errors import DrainingError, HeadraceError, InvalidRequestError
from headrace.generation import Chat, EngineStats, GenerationRequest, Prompt

log = structlog.get_logger()

Deliver = Callable[[list[Delivery], EngineStats], None]
"""Called by any thread, the engine's own once a step; must neither block nor raise."""

_NUM_TOKENIZER_THREADS = 2
_RETRY_ELSEWHERE = 1.0  # seconds; another process answers, if any does
_CHARACTERS_PER_TOKEN = 3  # a low guess, so that what is being tokenized counts enough
_SHORT_PROMPT = 1000  # characters, tokenized in under half a millisecond: two thread hops take more
_MESSAGE_LENGTH = 64  # characters that a template's work on one message is worth


class _Arrival(NamedTuple):
    request: GenerationRequest
    prompt_ids: list[int]
    arrived_at: float


class _Departure(NamedTuple):
    request_id: str


class _Changes(NamedTuple):
    started: list[str]
    ended: list[str]
    at: float


class AsyncEngine:
    """Accepts requests on a loop and steps the engine whenever there is work.

    `deliver` is called in the thread once a step. `fault` is set if the engine itself failed: every
    request has then been answered with an error, and the process should end.
    """

    def __init__(self, engine: Engine, tokenizer: Vocabulary, deliver: Deliver) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._queue = QueueBound(engine.config)
        self._accepted: set[str] = set()
        self._tokenizing: set[str] = set()
        self._stats = engine.stats
        self._fault: asyncio.Future[BaseException] = self._loop.create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._is_closing = False
        self._inbox: deque[_Arrival | _Departure] = deque()
        self._changes: deque[_Changes] = deque()
        self._wake = threading.Event()
        self._encoders = ThreadPoolExecutor(_NUM_TOKENIZER_THREADS, "headrace-tokenizer")
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    @property
    def has_work(self) -> bool:
        """Whether the thread has anything to do; what is being tokenized does not count."""
        self._settle()
        return len(self._accepted) > len(self._tokenizing)

    @property
    def fault(self) -> BaseException | None:
        return self._fault.result() if self._fault.done() else None

    async def wait_for_fault(self) -> BaseException:
        """Return what made the engine fail, if it ever does."""
        return await asyncio.shield(self._fault)

    async def add(self, request: GenerationRequest) -> None:
        """Accept a request: from its return on its deliveries come. Raises when it is refused."""
        self._refuse_if_closed()
        self._settle()
        request_id, accepted_at = request.request_id, time.monotonic()
        if request_id in self._accepted:
            raise InvalidRequestError(f"request {request_id} is already in progress")
        self._engine.limits.check_sampling(request.sampling)
        if not request.was_accepted:
            self._queue.enter(request_id, _estimated_tokens(request), accepted_at)
        self._accepted.add(request_id)
        self._tokenizing.add(request_id)
        self._idle.clear()
        try:
            prompt_ids = await self._prompt_ids(request)
        except BaseException:
            self._forget(request_id)
            raise
        if request_id not in self._tokenizing:  # aborted meanwhile
            self._forget(request_id)
            return
        self._tokenizing.discard(request_id)
        self._send(_Arrival(request, prompt_ids, accepted_at))

    def abort(self, request_id: str) -> None:
        """Stop a request at the next step; nothing more is delivered for it once that has run."""
        if request_id in self._tokenizing:
            self._tokenizing.discard(request_id)
        elif request_id in self._accepted:
            self._send(_Departure(request_id))

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, worked out off the loop; refused if it could never fit."""
        encode = partial(self._encode, prompt, add_special_tokens=add_special_tokens)
        return await self._loop.run_in_executor(self._encoders, encode)

    async def detokenize(self, token_ids: list[int]) -> str:
        decode = partial(self._tokenizer.decode, token_ids, skip_special_tokens=False)
        return await self._loop.run_in_executor(self._encoders, decode)

    async def drain(self) -> None:
        """Take no new requests and return when those accepted are answered."""
        self._is_draining = True  # from here on the thread tells at once
        self._settle()
        await self._idle.wait()

    async def close(self) -> None:
        """End the thread after its current step; what is unfinished gets an error."""
        self._is_draining = self._is_closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        self._encoders.shutdown(wait=False)
        self._end_all(DrainingError("the engine is shutting down", retry_after=_RETRY_ELSEWHERE))

    async def _prompt_ids(self, request: GenerationRequest) -> list[int]:
        if _length(request.prompt) <= _SHORT_PROMPT:
            prompt_ids = self._encode(request.prompt)
        else:
            prompt_ids = await self.tokenize(request.prompt)
        self._refuse_if_closed(even_draining=False)
        self._engine.limits.check(request, prompt_ids)
        num_tokens = request.sampling.n * len(prompt_ids)
        self._settle()
        if not request.was_accepted:
            self._queue.resize(request.request_id, num_tokens, time.monotonic())
        return prompt_ids

    def _encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(
            prompt,
            add_special_tokens=add_special_tokens,
            max_tokens=self._engine.limits.max_model_len,
        )

    def _refuse_if_closed(self, *, even_draining: bool = True) -> None:
        if self._fault.done():
            raise HeadraceError(f"the engine has failed: {self._fault.result()!r}")
        if self._is_closing or (even_draining and self._is_draining):
            raise DrainingError("the engine is shutting down", retry_after=_RETRY_ELSEWHERE)

    def _send(self, message: _Arrival | _Departure) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _settle(self) -> None:
        """Take in who has started and who has ended since the last look, on the loop."""
        while self._changes:
            started, ended, at = self._changes.popleft()
            for request_id in started:
                self._queue.start(request_id, at)
            for request_id in ended:
                self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._queue.leave(request_id, time.monotonic())
        self._tokenizing.discard(request_id)
        self._accepted.discard(request_id)
        if not self._accepted:
            self._idle.set()

    def _receive_fault(self, error: BaseException) -> None:
        self._fault.set_result(error)
        self._end_all(HeadraceError("the engine failed while it answered"))

    def _end_all(self, error: HeadraceError) -> None:
        """Answer whatever is in the engine with an error; `add` answers what is on its way."""
        self._settle()
        ended = self._accepted - self._tokenizing
        for request_id in ended:
            self._forget(request_id)
        if ended:
            self._deliver([Delivery(request_id, error=error) for request_id in ended], self._stats)

    def _run(self) -> None:
        """Step while there is work, sleep while there is none: the thread's whole life."""
        try:
            while self._wait_for_work():
                deliveries = self._take_messages()
                self._engine.compute(time.monotonic())
                deliveries += self._engine.collect(time.monotonic())
                started, ended = self._engine.take_changes()
                ended += [each.request_id for each in deliveries if each.error is not None]
                # A caller who has read an answer finds the place in the queue free; the loop that
                # has heard of a request's end knows that it was answered.
                self._tell_of(started, [])
                self._stats = self._engine.stats
                self._deliver(deliveries, self._stats)
                self._tell_of([], ended)
        except BaseException as error:  # callers must be answered whatever failed
            log.critical("engine.failed", exc_info=error)
            self._call(self._receive_fault, error)

    def _tell_of(self, started: list[str], ended: list[str]) -> None:
        if started or ended:
            self._changes.append(_Changes(started, ended, time.monotonic()))
            if self._is_draining:
                self._call(self._settle)

    def _wait_for_work(self) -> bool:
        """Return when there is something to do; False when it is to end."""
        while not (self._is_closing or self._inbox or self._engine.has_work):
            self._wake.wait()
            self._wake.clear()
        return not self._is_closing

    def _take_messages(self) -> list[Delivery]:
        refused: list[Delivery] = []
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, _Departure):
                self._engine.abort(message.request_id)
            elif (delivery := self._add(message)) is not None:
                refused.append(delivery)
        return refused

    def _add(self, arrival: _Arrival) -> Delivery | None:
        request_id = arrival.request.request_id
        try:
            self._engine.add(*arrival)
        except HeadraceError as error:
            return Delivery(request_id, error=error)
        except Exception:  # the others must be answered
            log.exception("request.failed", request_id=request_id)
            return Delivery(request_id, error=HeadraceError("the engine failed on this request"))
        return None

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)


def _estimated_tokens(request: GenerationRequest) -> int:
    length = _length(request.prompt)
    if not isinstance(request.prompt, list):
        length = length // _CHARACTERS_PER_TOKEN + 1
    return request.sampling.n * length


def _length(prompt: Prompt) -> int:
    """Characters of a text or, with some for each message, of a chat; tokens of a list."""
    if isinstance(prompt, Chat):
        texts = [text or "" for m in prompt.messages for text in (m.role, m.content, m.name)]
        return sum(map(len, texts)) + _MESSAGE_LENGTH * len(prompt.messages)
    return len(prompt)
