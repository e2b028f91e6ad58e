from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from headrace.engine.detokenizer import Detokenizer, TokenBytes
from headrace.errors import ModelFileError
from real_models import GEMMA3, SMOLLM2, real_model


@cache
def token_bytes(source: str) -> TokenBytes:
    return TokenBytes(real_model(source).tokenizer, source)


def stream(source: str, ids: list[int], *, at_start: bool = False) -> list[str]:
    detokenizer = Detokenizer(token_bytes(source), frozenset(), at_start=at_start)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@given(st.lists(st.integers(0, 49151), max_size=40))
def test_pieces_of_byte_level_tokens_join_to_the_whole(ids: list[int]) -> None:
    whole = real_model(SMOLLM2).tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(stream(SMOLLM2, ids)) == whole


@given(st.text(max_size=60))
def test_pieces_of_sentencepiece_tokens_join_to_the_text(text: str) -> None:
    ids = real_model(GEMMA3).tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(stream(GEMMA3, ids)) == text.replace("▁", " ")


@pytest.mark.parametrize("source", [SMOLLM2, GEMMA3])
@given(text=st.text(alphabet="añ你🙂👨\u200d🇫", min_size=1, max_size=20))
def test_a_character_is_never_cut(source: str, text: str) -> None:
    ids = real_model(source).tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream(source, ids)
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) == text


def test_what_is_left_of_a_character_comes_out_at_the_end() -> None:
    ids = real_model(SMOLLM2).tokenizer.encode("🙂").ids
    assert len(ids) > 1
    assert stream(SMOLLM2, ids[:-1]) == [""] * (len(ids) - 1) + ["\ufffd"]


def test_hidden_tokens_give_no_text() -> None:
    detokenizer = Detokenizer(token_bytes(SMOLLM2), {2}, at_start=False)
    assert [detokenizer.push(token) for token in (19556, 2, 905)] == ["Hello", "", " world"]


def test_padding_rows_of_an_embedding_are_empty_tokens() -> None:
    assert token_bytes(SMOLLM2)[49_999] == b""


def tiny_sentencepiece() -> TokenBytes:
    vocabulary = {"▁a": 0, "▁b": 1, "<0xC3>": 2, "<0xB1>": 3, "<0xZZ>": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return TokenBytes(tokenizer, "tiny")


def test_the_first_space_is_dropped_only_without_a_prompt() -> None:
    start = Detokenizer(tiny_sentencepiece(), frozenset(), at_start=True)
    later = Detokenizer(tiny_sentencepiece(), frozenset(), at_start=False)
    assert [start.push(0), start.push(1)] == ["a", " b"]
    assert [later.push(0), later.push(1)] == [" a", " b"]


def test_byte_tokens_are_bytes_and_others_are_text() -> None:
    known = tiny_sentencepiece()
    assert [known[i] for i in range(5)] == [b" a", b" b", b"\xc3", b"\xb1", b"<0xZZ>"]


def test_a_decoder_we_do_not_know_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelFileError, match=r"decoder .'WordPiece'. is not supported"):
        TokenBytes(tokenizer, "tiny")
