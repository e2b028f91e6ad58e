import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from harness.random_weights import LLAMA_1B, Q4_0, Q4_1, QUIET, SPREAD, write_model
from tiny_model import SHAPE, VOCABULARY

from headrace.modelfiles.model import open_model


def embeddings(path: Path) -> np.ndarray:
    (found,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    return dequantize(found.data, found.tensor_type)


@pytest.mark.parametrize("kind", [Q4_0, Q4_1])
def test_the_file_is_a_model_of_the_shape(
    kind: gguf.GGMLQuantizationType, vocabulary: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, SHAPE, vocabulary, kind=kind, seed=0)
    model = open_model(path)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (320, 64, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.intermediate_size == 96
    assert config.tied_embeddings
    assert model.tokenizer.get_vocab_size() == 320
    assert {t.tensor_type for t in gguf.GGUFReader(path).tensors if "ffn_up" in t.name} == {kind}


def test_weights_have_the_spread_that_was_asked_for(vocabulary: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, SHAPE, vocabulary, kind=Q4_0, seed=0)
    said = embeddings(path)[len(VOCABULARY) :]
    assert said.std() == pytest.approx(SPREAD, rel=0.1)


def test_tokens_without_text_of_their_own_are_not_said(vocabulary: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, SHAPE, vocabulary, kind=Q4_0, seed=0)
    spread = embeddings(path).std(axis=1)
    assert spread[VOCABULARY.index("<|end|>")] < 2 * QUIET * SPREAD
    assert spread[VOCABULARY.index("é")] < 2 * QUIET * SPREAD
    assert spread[VOCABULARY.index("a")] > SPREAD / 2
    assert spread[VOCABULARY.index("Ġ")] > SPREAD / 2


def test_the_same_seed_writes_the_same_file(vocabulary: Path, tmp_path: Path) -> None:
    for name, seed in ("first", 1), ("again", 1), ("other", 2):
        write_model(tmp_path / name, SHAPE, vocabulary, kind=Q4_0, seed=seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in ("first", "again", "other"))
    assert first == again
    assert first != other


def test_a_vocabulary_that_does_not_fit_is_an_error(vocabulary: Path, tmp_path: Path) -> None:
    small = dataclasses.replace(SHAPE, vocab_size=64)
    with pytest.raises(ValueError, match="do not fit into a vocabulary of 64"):
        write_model(tmp_path / "model.gguf", small, vocabulary, kind=Q4_0, seed=0)
    assert not (tmp_path / "model.gguf").exists()


def test_the_published_shape_has_as_many_weights_as_its_name_says() -> None:
    layers = sum(rows * columns for _, rows, columns in LLAMA_1B.matrices())
    assert layers + LLAMA_1B.vocab_size * LLAMA_1B.hidden_size == pytest.approx(1.236e9, rel=1e-3)
