"""Text, tokens and stops of one answer, a byte a token."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.paged_executor import EOS, ByteStream
from headrace.engine.answer import Answer
from headrace.generation import Chunk, SamplingParams, Timing, TokenLogprob, Usage

TIMING = Timing(0, 0, 0, 1)


def run(tokens: list[int], params: SamplingParams, max_tokens: int = 1000) -> list[Chunk]:
    answer = Answer(0, params, ByteStream(), max_tokens=max_tokens, eos_token_ids=[EOS])
    chunks = []
    for token_id in tokens:
        logprob = None
        if params.logprobs is not None:
            logprob = TokenLogprob(token_id, bytes([token_id % 256]), -1.0, [])
        chunk = answer.push(token_id, logprob)
        if answer.finish_reason is not None:
            assert chunk is None
            break
        if chunk is not None:
            chunks.append(chunk)
    else:
        answer.finish("length")
    usage = Usage(1, answer.num_tokens)
    return [*chunks, answer.last_chunk(usage, TIMING)]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@settings(max_examples=200)
@given(
    text=st.text(alphabet="abé€😀", max_size=30),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
    scored=st.booleans(),
)
@example(text="éa", stops=["a", "éaa"], scored=True)
def test_no_part_of_a_stop_string_gets_out_and_nothing_else_is_lost(
    text: str,
    stops: list[str],
    scored: bool,  # noqa: FBT001 - hypothesis passes it by name
) -> None:
    params = SamplingParams(stop=tuple(stops), logprobs=0 if scored else None)
    tokens = list(text.encode())
    chunks = run(tokens, params)
    # A stop is seen when its last byte is in; of those seen then, the earliest start cuts.
    ends = [match.end() for stop in stops for match in [re.search(re.escape(stop), text)] if match]
    expected = text
    if ends:
        seen = text[: min(ends)]
        expected = text[: min(seen.find(stop) for stop in stops if stop in seen)]
    assert text_of(chunks) == expected
    assert chunks[-1].finish_reason == ("stop" if ends else "length")
    generated = [token_id for chunk in chunks for token_id in chunk.token_ids]
    assert generated == tokens[: len(generated)]
    assert chunks[-1].usage == Usage(1, len(generated))
    if scored:
        shown = b"".join(lp.token for chunk in chunks for lp in chunk.logprobs or [])
        assert shown.startswith(expected.encode())
        assert shown.decode(errors="ignore") == expected


@settings(max_examples=100)
@given(tokens=st.lists(st.integers(0, 255), max_size=30))
def test_characters_are_never_cut(tokens: list[int]) -> None:
    assert text_of(run(tokens, SamplingParams())) == bytes(tokens).decode(errors="replace")


def test_tokens_of_withheld_text_come_with_the_chunk_that_holds_it() -> None:
    chunks = run(list(b"abcX"), SamplingParams(stop=("bcd",), logprobs=0))
    assert [(chunk.text, bytes(chunk.token_ids)) for chunk in chunks] == [
        ("a", b"a"),
        ("bcX", b"bcX"),
        ("", b""),
    ]
    assert [len(chunk.logprobs or []) for chunk in chunks] == [1, 3, 0]


def test_a_possible_stop_at_the_end_is_text_after_all() -> None:
    chunks = run(list(b"abc"), SamplingParams(stop=("bcd",)))
    assert text_of(chunks) == "abc"
    assert chunks[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("token_id", "params", "reason", "stop_reason"),
    [
        (EOS, SamplingParams(), "stop", None),
        (EOS, SamplingParams(ignore_eos=True), "length", None),
        (66, SamplingParams(stop_token_ids=(66,)), "stop", 66),
        (EOS, SamplingParams(stop_token_ids=(EOS,)), "stop", EOS),
        (66, SamplingParams(stop=("B",)), "stop", "B"),
    ],
)
def test_what_ends_an_answer_is_named(
    token_id: int, params: SamplingParams, reason: str, stop_reason: str | int | None
) -> None:
    chunks = run([65, token_id], params)
    assert text_of(chunks) == "A"
    assert [token for chunk in chunks for token in chunk.token_ids] == [65, token_id]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (reason, stop_reason)


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    chunks = run(list(b"ab ab"), SamplingParams(stop=("b",), min_tokens=2))
    assert text_of(chunks) == "ab a"


def test_max_tokens_ends_an_answer_with_an_incomplete_character_shown_as_such() -> None:
    chunks = run(list("a€".encode()), SamplingParams(), max_tokens=3)
    assert text_of(chunks) == "a\ufffd"
    assert chunks[-1].finish_reason == "length"
