from collections.abc import Sequence
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.prefixes import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_HOLDERS,
    TOKEN_BYTES,
    Prefixes,
    beginning_of,
)
from headrace.routing.balance.strategy.strategy import RequestKey

CHUNK_TOKENS = CHUNK_BYTES // TOKEN_BYTES
A, B = Endpoint("a"), Endpoint("b")


def digests(prompt: str | Sequence[int], salt: str = "") -> list[int]:
    return beginning_of(RequestKey(prompt=prompt, salt=salt)).digests


def chunks(letters: str) -> str:
    return "".join(letter * CHUNK_BYTES for letter in letters)


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.integers(0, CHUNK_BYTES - 1))
def test_prompts_share_as_many_digests_as_whole_chunks(a: str, b: str, rest: int) -> None:
    found, other = digests(chunks(a) + "c" * rest), digests(chunks(b))
    equal = list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    assert found[: len(equal)] == other[: len(equal)]
    assert len(set(found) & set(other)) == len(equal)


def test_text_tokens_and_tenants_never_meet() -> None:
    prompts = [
        digests("a" * CHUNK_BYTES),
        digests([97] * CHUNK_TOKENS),
        digests("a" * CHUNK_BYTES, salt="other"),
    ]
    assert len({prompt[0] for prompt in prompts}) == 3


def test_a_long_prompt_costs_no_more_than_its_first_chunks() -> None:
    assert len(digests("a" * CHUNK_BYTES * (MAX_CHUNKS + 5))) == MAX_CHUNKS
    assert len(digests([1] * CHUNK_TOKENS * (MAX_CHUNKS + 5))) == MAX_CHUNKS
    assert digests("short") == []
    long = RequestKey(prompt="a" * CHUNK_BYTES * MAX_CHUNKS * 2)
    assert beginning_of(long).share == 1 / (MAX_CHUNKS * 2)


@given(st.text(max_size=20), st.integers(1, 6000))
def test_the_chunks_of_a_prompt_are_no_more_than_all_of_it(text: str, times: int) -> None:
    prompt = text * times
    digests, share = beginning_of(RequestKey(prompt=prompt))
    assert 0 < share <= 1
    assert len(digests) * share <= 1 + 1e-9
    if len(prompt) <= CHUNK_BYTES * MAX_CHUNKS and len(prompt.encode()) <= CHUNK_BYTES * MAX_CHUNKS:
        assert len(digests) == len(prompt.encode()) // CHUNK_BYTES


def test_numbers_that_are_no_tokens_are_left_to_the_worker() -> None:
    assert digests([1 << 80] * CHUNK_TOKENS) != digests([1 << 81] * CHUNK_TOKENS)


def test_each_endpoint_s_longest_match_is_found() -> None:
    prefixes = Prefixes()
    prefixes.remember(digests(chunks("xyz")), A)
    prefixes.remember(digests(chunks("xy")), B)
    assert prefixes.matched(digests(chunks("xyzw"))) == {A: 3, B: 2}
    assert prefixes.matched(digests(chunks("xw"))) == {A: 1, B: 1}
    assert prefixes.matched(digests(chunks("w"))) == {}


def test_tails_are_forgotten_before_the_prefixes_they_hang_on() -> None:
    prefixes = Prefixes(capacity=4)
    prefixes.remember(digests(chunks("xyz")), A)
    prefixes.remember(digests(chunks("uv")), B)
    assert prefixes.matched(digests(chunks("xyz"))) == {A: 2}
    assert prefixes.matched(digests(chunks("uv"))) == {B: 2}


def test_only_the_latest_holders_of_a_chunk_are_known() -> None:
    prefixes, prompt = Prefixes(), digests(chunks("x"))
    endpoints = [Endpoint(f"e{number}") for number in range(MAX_HOLDERS + 4)]
    for endpoint in endpoints:
        prefixes.remember(prompt, endpoint)
    prefixes.remember(prompt, endpoints[-2])
    assert set(prefixes.matched(prompt)) == set(endpoints[4:])


@given(
    st.lists(st.tuples(st.text("ab", max_size=5), st.integers(0, 3)), max_size=40),
    st.integers(5, 12),
)
def test_what_is_remembered_was_seen_and_is_bounded(
    seen: list[tuple[str, int]], capacity: int
) -> None:
    prefixes, endpoints = Prefixes(capacity), [Endpoint(f"e{number}") for number in range(4)]
    for count, (letters, number) in enumerate(seen, 1):
        prefixes.remember(digests(chunks(letters)), endpoints[number])
        assert len(prefixes) <= capacity
        found = prefixes.matched(digests(chunks(letters)))
        assert found.get(endpoints[number], 0) == len(letters)
        for endpoint, depth in found.items():
            its = [text for text, n in seen[:count] if endpoints[n] is endpoint]
            assert any(text[:depth] == letters[:depth] for text in its)
