import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.generation import Answered, Chunk, GenerationRequest, SamplingParams, Timing, Usage
from headrace.routing.attempts.resumable import (
    MAX_DEATHS,
    MAX_TEXT,
    MAX_TRIES_WITHOUT_PROGRESS,
    Resumable,
    seeded,
)


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


@pytest.mark.parametrize("queued", [None, 0.5, 5.0])
def test_times_are_those_of_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, queued: float | None
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    answer = Resumable(asked())
    answer.begin_try(tells_tokens=True)
    now = 103.0
    answer.note(Chunk(0, "upon", [4]))
    answer.begin_try(tells_tokens=True)
    now = 110.0
    ended = answer.note(last(timing=Timing(queued, 0.75, 2.0, 3)))
    known = None if queued is None else min(queued, 3.0)
    assert ended.timing == Timing(known, 3.0, 10.0 - (known or 0.0), 3)
    assert (ended.text, ended.usage) == ("!", Usage(1, 3))
    assert answer.is_whole


def test_the_times_of_an_answer_that_never_moved_are_its_endpoints() -> None:
    answer = Resumable(asked())
    answer.begin_try(tells_tokens=True)
    chunk = last()
    assert answer.note(chunk) is chunk


# What is known of it


@given(texts=st.lists(st.text()))
def test_its_text_is_kept_as_it_came(texts: list[str]) -> None:
    answer = Resumable(asked())
    for text in texts:
        answer.note(Chunk(0, text, [7]))
    assert answer.text == "".join(texts)


@pytest.mark.parametrize("sampling", [{"n": 2}, {"echo": True}])
def test_there_is_no_text_to_go_on_from_with_several_sequences_or_an_echo(
    sampling: dict[str, object],
) -> None:
    answer = Resumable(asked(**sampling))
    answer.note(Chunk(0, "upon", [4]))
    assert answer.text is None


def test_a_text_that_is_too_long_is_forgotten() -> None:
    request = asked()
    answer = Resumable(request)
    answer.note(Chunk(0, "x" * MAX_TEXT, [4]))
    assert answer.text == "x" * MAX_TEXT
    answer.note(Chunk(0, "x", [5]))
    answer.note(Chunk(0, "x", [6]))
    assert answer.text is None
    assert answer.resume(request).answered == (Answered([4, 5, 6], MAX_TEXT + 2),)


def test_text_without_tokens_is_text_of_unknown_tokens() -> None:
    answer = Resumable(asked())
    answer.begin_try(tells_tokens=False)
    for chunk in (Chunk(0, "", []), Chunk(0, "upon", [4]), Chunk(0, "", [5])):
        answer.note(chunk)
        assert answer.knows_tokens
    answer.note(Chunk(0, " a", []))
    assert not answer.knows_tokens
    answer.begin_try(tells_tokens=True)
    answer.note(Chunk(0, " time", [6]))
    assert not answer.knows_tokens
    assert answer.text == "upon a time"


def test_who_tells_every_token_may_tell_it_after_a_part_of_its_text() -> None:
    answer = Resumable(asked(stop=("ent",)))
    answer.begin_try(tells_tokens=True, is_trusted=False)
    for chunk in (Chunk(0, "a ", [4]), Chunk(0, "mom", [])):
        answer.note(chunk)
        assert answer.knows_tokens


@pytest.mark.parametrize("is_trusted", [True, False])
def test_tokens_that_were_promised_and_did_not_come_are_unknown(*, is_trusted: bool) -> None:
    answer = Resumable(asked())
    answer.begin_try(tells_tokens=True, is_trusted=is_trusted)
    answer.note(Chunk(0, "upon", []))
    assert answer.knows_tokens is is_trusted
    answer.note(Chunk(0, " a", [4, 5]))  # so it was the text of a token that had not ended
    assert answer.knows_tokens


def test_each_who_promises_tokens_has_to_tell_some() -> None:
    answer = Resumable(asked(n=2))
    answer.begin_try(tells_tokens=True, is_trusted=False)
    answer.note(Chunk(0, "upon", [4]))
    answer.begin_try(tells_tokens=True, is_trusted=False)
    assert answer.knows_tokens
    answer.note(Chunk(0, " a", []))
    assert not answer.knows_tokens
    answer.begin_try(tells_tokens=True)
    answer.note(Chunk(0, " time", [6]))
    assert not answer.knows_tokens, "those in between stay unknown"


def test_of_a_sequence_that_has_ended_no_tokens_are_needed() -> None:
    answer = Resumable(asked(n=2))
    answer.begin_try(tells_tokens=True, is_trusted=False)
    answer.note(Chunk(0, "upon", [], None, "stop"))
    assert answer.knows_tokens


@pytest.mark.parametrize("tells_tokens", [True, False])
def test_where_an_echo_ends_only_those_know_who_tell_every_token(*, tells_tokens: bool) -> None:
    answer = Resumable(asked(echo=True))
    answer.begin_try(tells_tokens=tells_tokens)
    answer.note(Chunk(0, "Once upon", [1, 2]))
    assert answer.knows_tokens is tells_tokens


# What kills workers


def test_the_last_try_without_progress_is_a_suspects() -> None:
    answer = Resumable(asked())
    for number in range(MAX_TRIES_WITHOUT_PROGRESS):
        assert answer.is_suspect is (number == MAX_TRIES_WITHOUT_PROGRESS - 1)
        assert not answer.is_condemned
        answer.begin_try(tells_tokens=True)
        answer.note_death()
    assert answer.is_condemned
    assert answer.died_of_it("it fell over").message == (
        "it fell over; 3 workers in a row ended with this request"
    )


def test_of_what_something_came_is_no_suspect() -> None:
    answer = Resumable(asked())
    answer.note_death()
    answer.note_death()
    answer.begin_try(tells_tokens=True)
    assert answer.is_suspect
    answer.note(Chunk(0, "upon", [4]))
    assert not answer.is_suspect
    answer.note_death()
    assert (answer.num_deaths, answer.num_tries_without_progress) == (3, 0)
    assert not answer.is_suspect


class Deaths(RuleBasedStateMachine):
    """A request is tried until it is condemned, and is suspect just when one death is left."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    @precondition(lambda self: self.answer.is_condemned)
    @rule()
    def begin(self) -> None:
        self.answer = Resumable(asked())
        self.in_vain = self.deaths = 0
        self.has_moved = False

    @precondition(lambda self: not self.answer.is_condemned)
    @rule(num_chunks=st.integers(0, 2), is_death=st.booleans())
    def make_a_try(self, num_chunks: int, *, is_death: bool) -> None:
        self.answer.begin_try(tells_tokens=True)
        for _ in range(num_chunks):
            self.answer.note(Chunk(0, "a", [1]))
            assert not self.answer.is_suspect
        self.has_moved = num_chunks > 0 and not is_death
        if is_death:
            self.answer.note_death()
            self.deaths += 1
            self.in_vain = 0 if num_chunks else self.in_vain + 1

    @invariant()
    def it_is_judged_by_what_it_did(self) -> None:
        answer = self.answer
        left = min(MAX_TRIES_WITHOUT_PROGRESS - self.in_vain, MAX_DEATHS - self.deaths)
        assert answer.is_condemned is (left <= 0)
        assert (answer.num_deaths, answer.num_tries_without_progress) == (self.deaths, self.in_vain)
        if left > 0:
            assert answer.is_suspect is (left == 1 and not self.has_moved)


TestDeaths = Deaths.TestCase


# What is drawn


@pytest.mark.parametrize("sampling", [{"seed": 7}, {"temperature": 0.0}])
def test_what_repeats_itself_anyway_is_left_as_it_is(sampling: dict[str, object]) -> None:
    request = asked(**sampling)
    assert seeded(request) is request


def test_what_is_drawn_gets_a_seed_so_that_another_worker_draws_the_same() -> None:
    one, other = seeded(asked()), seeded(asked())
    assert one.sampling.seed is not None
    assert one.sampling.seed != other.sampling.seed
    assert seeded(one) is one
