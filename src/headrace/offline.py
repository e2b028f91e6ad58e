"""Generation in this process, without a server: many prompts in, all answers out, in order.

with LLM("smollm2") as llm:
    for answer in llm.generate(["The sky is", "Water is"], SamplingParams(max_tokens=16)):
        print(answer.text)
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from rich import progress as bars
from rich.console import Console

from headrace.engine.engine import Engine
from headrace.engine.stream import fold_chunks
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import InvalidRequestError
from headrace.executors.config import CACHE_FOLDER, ExecutorName, KVCachePrecision, Precision
from headrace.executors.executor import Progress
from headrace.executors.select import create_executor
from headrace.generation import (
    Chat,
    Chunk,
    FinishReason,
    GenerationRequest,
    Message,
    Prompt,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from headrace.modelfiles.model import open_model
from headrace.modelfiles.sources import fetch
from headrace.settings import default_state_dir, model_spec

Turn = Message | Mapping[str, str]
"""A message, or what its JSON would hold: `role`, `content` and perhaps `name`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation of a prompt."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one prompt: `n` completions, the first of them at hand."""

    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.completions[0].finish_reason

    @property
    def usage(self) -> Usage:
        return self.completions[0].usage


class LLM:
    """A language model in this process. Not thread-safe; close it, or use it in a `with`.

    `source` is what `headrace serve` takes, and so are the options. HeadraceError, raised by every
    method, says what is wrong with a source, an option or a prompt.
    """

    def __init__(
        self,
        source: str,
        *,
        executor: ExecutorName = "auto",
        precision: Precision = "auto",
        kv_cache_precision: KVCachePrecision = "auto",
        kv_cache_memory: int | str | None = None,
        num_threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        prefix_caching: bool = True,
        state_dir: Path | None = None,
        show_progress: bool = True,
    ) -> None:
        spec = model_spec(
            source,
            {
                "executor": executor,
                "precision": precision,
                "kv_cache_precision": kv_cache_precision,
                "kv_cache_memory": kv_cache_memory,
                "num_threads": num_threads,
                "max_model_len": max_model_len,
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "prefix_caching": prefix_caching,
            },
        )
        with _loading_bar(source, visible=show_progress) as progress:
            folder = state_dir or default_state_dir()
            files = open_model(fetch(source, folder, progress))
            self._tokenizer = Tokenizer(files)
            executor_config = replace(spec.executor, cache_dir=folder / CACHE_FOLDER)
            self._executor = create_executor(files, executor_config, progress)
        self._engine = Engine(self._executor, self._tokenizer, spec.engine)
        self._max_num_seqs = max_num_seqs
        self._numbers = count()
        self._is_closed = False

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 - frozen
        *,
        show_progress: bool = True,
    ) -> list[Answer]:
        """Continue every prompt; `sampling` is for all of them or one for each."""
        asked: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
        params = [sampling] * len(asked) if isinstance(sampling, SamplingParams) else sampling
        if len(params) != len(asked):
            raise InvalidRequestError(
                f"there are {len(asked)} prompts and {len(params)} sampling parameters",
                param="sampling",
            )
        if self._is_closed:
            raise InvalidRequestError("this LLM is closed")
        requests = [
            GenerationRequest(request_id=str(next(self._numbers)), prompt=prompt, sampling=own)
            for prompt, own in zip(asked, params, strict=True)
        ]
        with _prompts_bar(len(requests), visible=show_progress) as advance:
            chunks = self._run(self._checked(requests), advance)
        return [_answer(chunks[request.request_id]) for request in requests]

    def chat(
        self,
        conversations: Sequence[Turn] | Sequence[Sequence[Turn]],
        sampling: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008 - frozen
        *,
        show_progress: bool = True,
    ) -> list[Answer]:
        """Answer one conversation, or several, through the model's chat template."""
        chats: list[Prompt] = [
            Chat(tuple(map(_message, turns))) for turns in _several(conversations)
        ]
        return self.generate(chats, sampling, show_progress=show_progress)

    def close(self) -> None:
        """Give the model's memory back; harmless when done twice."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _checked(
        self, requests: Sequence[GenerationRequest]
    ) -> list[tuple[GenerationRequest, list[int]]]:
        """Each request with its prompt's tokens, all of them known to fit before any is run."""
        limits, checked = self._engine.limits, []
        for number, request in enumerate(requests):
            with _noting(number):
                ids = self._tokenizer.encode(request.prompt, max_tokens=limits.max_model_len)
                limits.check(request, ids)
            checked.append((request, ids))
        return checked

    def _run(
        self,
        requests: Sequence[tuple[GenerationRequest, list[int]]],
        advance: Callable[[], None],
    ) -> dict[str, list[Chunk]]:
        """Step until every request is over; whatever interrupts this aborts all of them."""
        waiting = deque(requests)
        unfinished: dict[str, int] = {}  # sequences of the request that still run
        chunks: dict[str, list[Chunk]] = {request.request_id: [] for request, _ in requests}
        try:
            while waiting or unfinished:
                # the next batch waits in the engine, the rest here, so that its queue stays short
                while waiting and self._engine.stats.num_waiting < self._max_num_seqs:
                    request, prompt_ids = waiting.popleft()
                    self._engine.add(request, prompt_ids, time.monotonic())
                    unfinished[request.request_id] = request.sampling.n
                for delivery in self._engine.step(time.monotonic()):
                    if delivery.error is not None:
                        raise delivery.error
                    assert delivery.chunk is not None
                    chunks[delivery.request_id].append(delivery.chunk)
                    if delivery.chunk.finish_reason is not None:
                        unfinished[delivery.request_id] -= 1
                        if not unfinished[delivery.request_id]:
                            del unfinished[delivery.request_id]
                            advance()
                self._engine.take_changes()  # told to nobody here, and kept until taken
        finally:
            for request_id in unfinished:
                self._engine.abort(request_id)
        return chunks


@contextmanager
def _noting(number: int) -> Iterator[None]:
    """Say of an error which prompt of the call it is about."""
    try:
        yield
    except InvalidRequestError as error:
        error.add_note(f"prompt number {number}")
        raise


def _several(
    conversations: Sequence[Turn] | Sequence[Sequence[Turn]],
) -> Iterator[Sequence[Turn]]:
    single = [item for item in conversations if isinstance(item, Message | Mapping)]
    if single:
        yield single
    yield from (item for item in conversations if not isinstance(item, Message | Mapping))


def _message(turn: Turn) -> Message:
    if isinstance(turn, Message):
        return turn
    try:
        return msgspec.convert(turn, Message)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"a message: {error}", param="messages") from None


def _answer(chunks: Sequence[Chunk]) -> Answer:
    folded = sorted(fold_chunks(chunks), key=lambda chunk: chunk.index)
    return Answer(tuple(_completion(chunk) for chunk in folded))


def _completion(chunk: Chunk) -> Completion:
    assert chunk.finish_reason is not None
    assert chunk.usage is not None
    return Completion(
        text=chunk.text,
        token_ids=tuple(chunk.token_ids),
        finish_reason=chunk.finish_reason,
        usage=chunk.usage,
        stop_reason=chunk.stop_reason,
        logprobs=None if chunk.logprobs is None else tuple(chunk.logprobs),
    )


@contextmanager
def _loading_bar(source: str, *, visible: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn()
    hidden = not (visible and console.is_terminal)
    with bars.Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        task = shown.add_task(source, total=1.0)

        def update(phase: str, share: float) -> None:
            shown.update(task, description=f"{source} {phase}", completed=share)

        yield update


@contextmanager
def _prompts_bar(total: int, *, visible: bool) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeRemainingColumn()
    hidden = not (visible and console.is_terminal)
    with bars.Progress("answers", *columns, console=console, disable=hidden) as shown:
        task = shown.add_task("answers", total=total)
        yield lambda: shown.advance(task)
