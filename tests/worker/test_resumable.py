import msgspec
import pytest

from headrace.generation import (
    Answered,
    Chunk,
    GenerationRequest,
    SamplingParams,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.worker import frames
from headrace.worker.owed import Owed
from headrace.worker.resumable import Resumable


def asked(**sampling: object) -> GenerationRequest:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return GenerationRequest(request_id="r", prompt="Once", sampling=params)


def last(index: int = 0, timing: Timing | None = None) -> Chunk:
    timing = timing or Timing(0.5, 0.75, 2.0, 3)
    return Chunk(index, "!", [9], None, "stop", None, Usage(1, 3), timing)


def test_what_nothing_has_come_of_is_only_known_to_have_been_accepted() -> None:
    request = asked(n=2)
    resumed = Resumable(request).resume(request)
    assert resumed == msgspec.structs.replace(request, was_accepted=True)


def test_of_each_sequence_tokens_and_characters_are_counted() -> None:
    request = asked(n=3)
    answer = Resumable(request)
    for chunk in (Chunk(0, "upon", [4, 5]), Chunk(2, "", [6]), Chunk(0, " a", [7]), last(2)):
        assert answer.note(chunk) is chunk
    assert answer.has_begun
    assert not answer.is_whole
    assert answer.resume(request).answered == (
        Answered([4, 5, 7], 6),
        None,
        Answered([], 1, is_finished=True),
    )


def test_an_echoed_prompt_is_no_part_of_the_answer() -> None:
    request = asked(n=2, echo=True)
    answer = Resumable(request)
    answer.note(Chunk(0, "Once", [1, 2]))
    assert answer.resume(request).answered == (Answered([], 0), None)
    answer.note(Chunk(0, " upon", [4]))
    assert answer.resume(request).answered == (Answered([4], 5), None)


@pytest.mark.parametrize("queued", [0.5, 5.0])
def test_times_are_those_of_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, queued: float
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    request = asked()
    answer = Resumable(request)
    now = 103.0
    answer.note(Chunk(0, "upon", [4]))
    answer.resume(request)
    now = 110.0
    ended = answer.note(last(timing=Timing(queued, 0.75, 2.0, 3)))
    assert ended.timing == Timing(min(queued, 3.0), 3.0, 10.0 - min(queued, 3.0), 3)
    assert (ended.text, ended.usage) == ("!", Usage(1, 3))
    assert answer.is_whole


def test_the_next_worker_is_told_what_has_arrived() -> None:
    request = asked(logprobs=0)
    entry = Owed(frames.encode(frames.Generate(request)), lambda _: None, Resumable(request))
    assert frames.TO_WORKER.decode(entry.send()) == frames.Generate(request)
    assert entry.answer is not None
    entry.answer.note(Chunk(0, "upon", [4], [TokenLogprob(4, b"upon", -0.5, [])]))
    entry.has_moved = True
    entry.note_death()
    resumed = frames.TO_WORKER.decode(entry.send())
    assert isinstance(resumed, frames.Generate)
    assert resumed.request.answered == (Answered([4], 4),)
    assert resumed.request.was_accepted
