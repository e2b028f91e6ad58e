import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from headrace.errors import HeadraceError, QueueFullError, WorkerDiedError
from headrace.generation import Chunk, GenerationRequest, ModelInfo, Prompt
from headrace.registry.health.probe import PROMPT, Probe, probe
from headrace.registry.spec import GoldenCase
from scripted_worker import info_of

PARIS = GoldenCase(prompt="Capital of France?", expected="Paris", max_tokens=5)
BERLIN = GoldenCase(prompt="Capital of Germany?", expected="Berlin")
LONG = 60.0  # seconds; no probe that is well comes near it

Script = str | Exception | None
"""What a prompt is answered with: words, an error after the first of them, or None: it hangs."""


class FakeModel:
    """Answers by a table, and counts which generations were closed."""

    def __init__(self, answers: Mapping[str, Script], *, ends: bool = True) -> None:
        self._answers: dict[str, Script] = {PROMPT: "there was", **answers}
        self._ends = ends
        self.requests: list[GenerationRequest] = []
        self.num_closed = 0
        self.has_begun = asyncio.Event()

    @property
    def info(self) -> ModelInfo:
        return info_of("m@1")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        assert isinstance(request.prompt, str)
        self.requests.append(request)
        self.has_begun.set()
        try:
            match self._answers[request.prompt]:
                case str(text):
                    for number, word in enumerate(text.split()):
                        yield Chunk(0, f"{word} ", [number])
                    if self._ends:
                        yield Chunk(0, "", [], finish_reason="length")
                case Exception() as exc:
                    yield Chunk(0, "there", [1])
                    raise exc
                case None:
                    await asyncio.Event().wait()
        finally:
            self.num_closed += 1

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    async def detokenize(self, token_ids: list[int]) -> str:
        raise NotImplementedError


async def probed(model: FakeModel, *golden: GoldenCase, timeout: float = LONG) -> Probe:  # noqa: ASYNC109
    found = await probe(model, golden, timeout=timeout)
    assert model.num_closed == len(model.requests)
    return found


async def test_a_model_that_answers_is_alive() -> None:
    found = await probed(FakeModel({}))
    assert found == Probe(is_alive=True, seconds=found.seconds)
    assert 0 <= found.seconds < LONG


async def test_golden_answers_may_hold_more_than_what_is_expected() -> None:
    model = FakeModel({PARIS.prompt: "It is Paris, of course", BERLIN.prompt: "Berlin"})
    found = await probed(model, PARIS, BERLIN)
    assert (found.golden_passed, found.golden_total, found.reason) == (2, 2, None)


async def test_what_is_asked_is_greedy_bounded_and_never_found_in_a_cache() -> None:
    model = FakeModel({PARIS.prompt: "Paris"})
    await probed(model, PARIS)
    await probed(model, PARIS)
    assert all(request.sampling.temperature == 0 for request in model.requests)
    assert [request.sampling.max_tokens for request in model.requests] == [4, 5, 4, 5]
    assert [request.sampling.ignore_eos for request in model.requests] == [True, False] * 2
    assert len({request.request_id for request in model.requests}) == 4
    assert len({request.cache_salt for request in model.requests}) == 4


async def test_a_wrong_golden_answer_is_told_with_what_was_expected() -> None:
    found = await probed(FakeModel({PARIS.prompt: "Rome", BERLIN.prompt: "Berlin"}), PARIS, BERLIN)
    assert (found.is_alive, found.golden_passed, found.golden_total) == (True, 1, 2)
    assert found.reason == "golden case 'Capital of France?' expected 'Paris', answered 'Rome '"


async def test_a_reason_shows_the_beginnings_of_long_texts() -> None:
    case = GoldenCase(prompt="x" * 500, expected="Paris")
    found = await probed(FakeModel({case.prompt: "y" * 500}), case)
    assert found.reason is not None
    assert f"'{'x' * 40}...'" in found.reason
    assert f"'{'y' * 40}...'" in found.reason


async def test_a_model_that_hangs_is_told_after_the_timeout() -> None:
    found = await probed(FakeModel({PROMPT: None}), PARIS, timeout=0.01)
    assert not found.is_alive
    assert (found.golden_passed, found.golden_total) == (0, 1)
    assert found.seconds >= 0.01
    assert found.reason == "did not answer within 0.01 s"


async def test_a_golden_case_that_hangs_ends_the_round() -> None:
    model = FakeModel({PARIS.prompt: None, BERLIN.prompt: "Berlin"})
    found = await probed(model, PARIS, BERLIN, timeout=0.05)
    assert (found.is_alive, found.golden_passed, found.golden_total) == (True, 0, 2)
    assert found.reason is not None
    assert found.reason.endswith("expected 'Paris', but: did not answer within 0.05 s")
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WorkerDiedError("the worker died"), "the worker died"),
        (HeadraceError("a fault"), "a fault"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
async def test_a_model_that_raises_is_not_alive(error: Exception, reason: str) -> None:
    found = await probed(FakeModel({PROMPT: error}))
    assert (found.is_alive, found.is_busy, found.reason) == (False, False, reason)


async def test_a_golden_case_that_fails_leaves_the_others_to_be_asked() -> None:
    model = FakeModel({PARIS.prompt: HeadraceError("too long"), BERLIN.prompt: "Berlin"})
    found = await probed(model, PARIS, BERLIN)
    assert (found.golden_passed, found.golden_total) == (1, 2)
    assert found.reason is not None
    assert found.reason.endswith("but: too long")


@pytest.mark.parametrize("prompt", [PROMPT, PARIS.prompt])
async def test_a_full_queue_says_that_the_model_is_busy(prompt: str) -> None:
    model = FakeModel({PARIS.prompt: "Paris", prompt: QueueFullError("full", retry_after=1.0)})
    found = await probed(model, PARIS)
    assert found.is_busy


async def test_an_answer_without_a_token_is_none() -> None:
    found = await probed(FakeModel({PROMPT: ""}))
    assert (found.is_alive, found.reason) == (False, "answered without a token")


async def test_an_answer_without_an_end_is_none() -> None:
    found = await probed(FakeModel({}, ends=False))
    assert (found.is_alive, found.reason) == (False, "its answer broke off")


async def test_cancelling_a_probe_closes_its_generation() -> None:
    model = FakeModel({PROMPT: None})
    task = asyncio.create_task(probe(model, (), timeout=LONG))
    await model.has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.num_closed == 1
