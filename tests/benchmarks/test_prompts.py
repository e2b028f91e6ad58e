import pytest
from harness.prompts import OPENING, Prompts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LENGTH = 32


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte is a token: the smallest tokenizer that can say anything."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, LENGTH)


def test_every_prompt_is_exactly_as_long_as_asked_for(prompts: Prompts) -> None:
    assert {len(prompt) for prompt in prompts.take(0, len(prompts))} == {LENGTH}


def test_no_two_prompts_open_alike(prompts: Prompts) -> None:
    openings = {tuple(prompt[:OPENING]) for prompt in prompts.take(0, len(prompts))}
    assert len(openings) == len(prompts) > 100


def test_a_prompt_sent_as_text_is_the_same_tokens(prompts: Prompts, tokenizer: Tokenizer) -> None:
    for prompt in prompts.take(0, 50):
        assert tokenizer.encode(tokenizer.decode(prompt)).ids == prompt


def test_the_same_number_is_the_same_prompt(prompts: Prompts) -> None:
    assert prompts.take(3, 2) == prompts.take(0, 5)[3:]


def test_more_prompts_than_there_are_is_an_error(prompts: Prompts) -> None:
    with pytest.raises(ValueError, match="distinct prompts"):
        prompts.take(len(prompts) - 1, 2)
