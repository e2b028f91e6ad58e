"""Finds out whether a model answers, and answers right, by asking it. Judges nothing."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast
from uuid import uuid4

from headrace.errors import HeadraceError, QueueFullError
from headrace.generation import Chunk, GenerationRequest, LanguageModel, SamplingParams
from headrace.registry.spec import GoldenCase

PROMPT = "Once upon a time"
SAMPLING = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

_SHOWN = 40  # characters of a prompt or an answer, in a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one round found: a short generation, then every golden case.

    `seconds` are those of the short generation. With `is_busy` the queue was full, which tells
    nothing of health. `reason` says what is not well.
    """

    is_alive: bool
    seconds: float
    golden_passed: int = 0
    golden_total: int = 0
    is_busy: bool = False
    reason: str | None = None


async def probe(
    model: LanguageModel,
    golden: Sequence[GoldenCase],
    *,
    timeout: float,  # noqa: ASYNC109 - its end is an answer, not an error
) -> Probe:
    """Generate a little, then ask every golden case; each may take `timeout` seconds.

    Raises nothing but CancelledError. Once a case hangs, those behind it are not asked and have
    not passed.
    """
    short = await _ask(model, PROMPT, SAMPLING, timeout)
    if short.fault is None and short.num_tokens == 0:
        short.fault = "answered without a token"
    if short.fault is not None:
        return Probe(
            is_alive=False,
            seconds=short.seconds,
            golden_total=len(golden),
            is_busy=short.is_busy,
            reason=short.fault,
        )
    return await ask_golden(model, golden, timeout=timeout, seconds=short.seconds)


async def ask_golden(
    model: LanguageModel,
    golden: Sequence[GoldenCase],
    *,
    timeout: float,  # noqa: ASYNC109 - its end is an answer, not an error
    seconds: float,
) -> Probe:
    """Ask every golden case of a model that answers; `seconds` are those of a short generation."""
    answers = await _ask_golden(model, golden, timeout)
    wrongs = [_wrong(case, answer) for case, answer in zip(golden, answers, strict=False)]
    return Probe(
        is_alive=True,
        seconds=seconds,
        golden_passed=wrongs.count(None),
        golden_total=len(golden),
        is_busy=any(answer.is_busy for answer in answers),
        reason=next(filter(None, wrongs), None),
    )


@dataclass(slots=True)
class _Answer:
    """What came of one request; `fault` says why it has no whole answer."""

    text: str = ""
    num_tokens: int = 0
    seconds: float = 0.0
    has_ended: bool = False
    fault: str | None = None
    is_busy: bool = False
    hangs: bool = False

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.num_tokens += len(chunk.token_ids)
        self.has_ended = chunk.finish_reason is not None


async def _ask_golden(
    model: LanguageModel, golden: Sequence[GoldenCase], limit: float
) -> list[_Answer]:
    answers: list[_Answer] = []
    for case in golden:
        sampling = SamplingParams(temperature=0, max_tokens=case.max_tokens)
        answers.append(await _ask(model, case.prompt, sampling, limit))
        if answers[-1].hangs or answers[-1].is_busy:
            break
    return answers


async def _ask(
    model: LanguageModel, prompt: str, sampling: SamplingParams, limit: float
) -> _Answer:
    answer = _Answer()
    began = time.monotonic()
    try:
        await _collect(answer, model, prompt, sampling, limit)
    except QueueFullError as exc:
        answer.fault, answer.is_busy = exc.message, True
    except TimeoutError:
        answer.fault, answer.hangs = f"did not answer within {limit:g} s", True
    except HeadraceError as exc:
        answer.fault = exc.message
    except Exception as exc:  # noqa: BLE001 - whatever it was, the score and its reason must tell
        answer.fault = f"{type(exc).__name__}: {exc}"
    answer.seconds = time.monotonic() - began
    return answer


async def _collect(
    answer: _Answer, model: LanguageModel, prompt: str, sampling: SamplingParams, limit: float
) -> None:
    # A salt of its own: the prompt is computed each time, not found in the prefix cache.
    fresh = f"probe-{uuid4().hex}"
    request = GenerationRequest(
        request_id=fresh, prompt=prompt, sampling=sampling, cache_salt=fresh
    )
    generation = cast("AsyncGenerator[Chunk, None]", model.generate(request))  # it can be closed
    async with asyncio.timeout(limit), aclosing(generation) as chunks:
        async for chunk in chunks:
            answer.add(chunk)
    if not answer.has_ended:
        raise HeadraceError("its answer broke off")


def _wrong(case: GoldenCase, answer: _Answer) -> str | None:
    """What is wrong with the answer, for people; None if the case has passed."""
    expectation = f"golden case {_shown(case.prompt)} expected {_shown(case.expected)}"
    if answer.fault is not None:
        return f"{expectation}, but: {answer.fault}"
    if case.expected not in answer.text:
        return f"{expectation}, answered {_shown(answer.text)}"
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
