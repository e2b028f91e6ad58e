"""What an engine refuses before it is queued; the rest of it is in the tests of the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.paged_executor import ByteTokenizer, PagedExecutor
from headrace.engine.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.stream import fold_chunks
from headrace.errors import InvalidRequestError
from headrace.generation import Answered, GenerationRequest, SamplingParams

FINISHED = Answered([], 3, is_finished=True)


def engine(max_queued_tokens: int = 1000) -> Engine:
    config = EngineConfig(max_queued_tokens=max_queued_tokens)
    return Engine(PagedExecutor(max_model_len=64), ByteTokenizer(), config)


def request(
    answered: tuple[Answered | None, ...], *, text: str | None = None, **sampling: object
) -> GenerationRequest:
    params = {"max_tokens": 8, "n": len(answered) or 1, **sampling}
    return GenerationRequest(
        request_id="r",
        prompt="Hi",
        sampling=SamplingParams(**params),
        answered=answered,
        answered_text=text,
    )


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request((Answered([257], 1),)), "token id 257 is not in the vocabulary of 257"),
        (request((None, Answered([-1], 1))), "token id -1"),
        (request((Answered([1], 1), None), n=3), "expected 3 entries"),
        (request((Answered([1], 1), None), n=1), "expected 1 entries"),
        (request((FINISHED,)), "every choice is finished"),
        (request((FINISHED, FINISHED)), "every choice is finished"),
        (request((Answered([1], -1),)), "at least 0"),
        (request((Answered([1] * 8, 8),)), "8 tokens leave nothing of max_tokens=8"),
        (request((Answered([1] * 62, 8),), max_tokens=None), "leave nothing of max_tokens=62"),
        (request((Answered([1], 1),), max_tokens=0, echo=True), "nothing of max_tokens=0"),
        (request((Answered([1] * 500, 1), None), max_tokens=0, echo=True), "of max_tokens=0"),
        (request((), text="Hel"), "not its text"),
    ],
)
def test_an_answer_that_cannot_be_gone_on_with_is_refused(
    asked: GenerationRequest, complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        engine().add(asked, [72, 105], 0.0)
    assert caught.value.param == "answered"


def test_tokens_of_answers_count_as_those_of_prompts_do() -> None:
    answered = (Answered([1] * 9, 9), Answered([1] * 9, 9))
    with pytest.raises(InvalidRequestError, match="and 18 of answers, are more than the 20"):
        engine(max_queued_tokens=20).add(request(answered, max_tokens=20), [72, 105], 0.0)


_TOKENS = st.lists(st.integers(-1, 258) | st.sampled_from([97, 98, 256]), max_size=12)
_ENTRIES = st.none() | st.builds(Answered, _TOKENS, st.integers(-2, 99), st.booleans())


@given(
    answered=st.lists(_ENTRIES, min_size=1, max_size=3).map(tuple),
    n=st.none() | st.integers(1, 3),
    max_tokens=st.none() | st.integers(0, 20),
    echo=st.booleans(),
    stop=st.lists(st.text("ab", min_size=1, max_size=3), max_size=2).map(tuple),
    min_tokens=st.integers(0, 3),
    logprobs=st.sampled_from([None, 0, 2]),
)
def test_whatever_was_answered_before_is_refused_or_gone_on_with(
    answered: tuple[Answered | None, ...], n: int | None, **sampling: object
) -> None:
    asked = request(answered, **sampling, n=n or len(answered), seed=1)
    subject = engine()
    try:
        subject.add(asked, [72, 105], 0.0)
    except InvalidRequestError:
        assert not subject.has_work
        return
    chunks = []
    while subject.has_work:
        for delivery in subject.step(0.0):
            assert delivery.chunk is not None, delivery.error
            chunks.append(delivery.chunk)
        subject.scheduler.check()
    assert all(chunk.finish_reason for chunk in fold_chunks(chunks))
    finished = [i for i, each in enumerate(answered) if each is not None and each.is_finished]
    assert sorted({chunk.index for chunk in chunks} | {*finished}) == [*range(asked.sampling.n)]
