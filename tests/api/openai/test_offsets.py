from encodings.utf_8 import IncrementalDecoder

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.api.openai.offsets import TextOffsets

# Whole characters, and the first and later bytes of such, so that they break often.
TOKENS = st.one_of(
    st.text(min_size=1, max_size=3).map(str.encode),
    st.lists(st.sampled_from([*b"a \xc3\xe2\xf0\xff\x80\xa9\xac\x82"]), min_size=1, max_size=3).map(
        bytes
    ),
)


@given(st.lists(TOKENS, min_size=1, max_size=12), st.data())
@example([b"\xe2", b"\x82", b"A", b"\xef\xbf\xbd"], None)
def test_offsets_are_those_of_the_whole_text_in_whatever_pieces_it_comes(
    tokens: list[bytes], data: st.DataObject | None
) -> None:
    whole = b"".join(tokens).decode(errors="replace")
    offsets = TextOffsets().extend(whole, tokens)
    assert offsets == sorted(offsets)
    for number, offset in enumerate(offsets):
        before, after = b"".join(tokens[:number]), b"".join(tokens[number:])
        if before.decode(errors="replace") + after.decode(errors="replace") == whole:
            assert whole[offset:] == after.decode(errors="replace")
    streaming = TextOffsets()
    streamed, first, sent = [], 0, 0
    for end in range(1, len(tokens) + 1):
        if end < len(tokens) and data is not None and data.draw(st.booleans()):
            continue
        text = _text_of(tokens[:end]) if end < len(tokens) else whole
        streamed += streaming.extend(text[sent:], tokens[first:end])
        first, sent = end, len(text)
    assert streamed == offsets


def _text_of(tokens: list[bytes]) -> str:
    """What can be sent of an answer that goes on."""
    decoder = IncrementalDecoder(errors="replace")
    return decoder.decode(b"".join(tokens))


def test_a_prompt_that_ends_within_a_character_moves_no_later_token() -> None:
    answer = [b"-", b"1", b"0"]
    assert TextOffsets().extend("\ufffd-10", [b"\xe5", *answer]) == [0, 1, 2, 3]
    streaming = TextOffsets()
    pieces = [streaming.extend("\ufffd", [b"\xe5"])]
    pieces += [streaming.extend(token.decode(), [token]) for token in answer]
    assert pieces == [[0], [1], [2], [3]]


def test_an_answer_does_not_complete_the_prompts_last_character() -> None:
    offsets = TextOffsets().extend("\ufffd\ufffd\ufffdb", [b"\xe2", b"\x82\xac", b"b"])
    assert offsets == [0, 1, 3]


def test_text_may_run_ahead_of_its_tokens() -> None:
    offsets = TextOffsets()
    assert offsets.extend("ab", [b"a"]) == [0]
    assert offsets.extend("cd", [b"bc", b"d"]) == [1, 3]


def test_a_stop_string_may_cut_the_last_token() -> None:
    assert TextOffsets().extend("one t", [b"one", b" two", b"</s>"]) == [0, 3, 5]


def test_a_surrogate_in_pieces_moves_no_later_token() -> None:
    # The decoder takes its first two bytes for the start of a character until the third is in.
    offsets = TextOffsets().extend("\ufffd\ufffd\ufffdb", [b"\xed", b"\xa9", b"\x80", b"b"])
    assert offsets == [0, 0, 2, 3]
