"""A vocabulary of single bytes as a GGUF file, and the shape of a model that small."""

from pathlib import Path

import gguf
from harness.random_weights import Shape

# The letters that byte-level BPE has for ASCII and Latin-1, a space and a new line.
ALPHABET = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
VOCABULARY = ["<|end|>", *ALPHABET, "Ġ", "Ċ", "ab", "abc"]
SHAPE = Shape(
    name="Tiny",
    vocab_size=320,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
)


def write_vocabulary(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] + [1] * (len(VOCABULARY) - 1))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
