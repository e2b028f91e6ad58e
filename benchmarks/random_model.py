"""Writes a model of random weights in the shape of Llama 3.2 1B, for speed at that size.

    python benchmarks/random_model.py
    python benchmarks/serving.py --model .cache/benchmarks/random/llama-1b-q4_0.gguf

Layers are in 4 bits, embeddings in 8; the tokenizer is that of `--vocabulary`, filled up. The same
seed writes the same file.
"""

import argparse
from pathlib import Path

from harness.random_weights import LLAMA_1B, Q4_0, Q4_1, write_model
from harness.weights import fetch_gguf

KINDS = {"q4_0": Q4_0, "q4_1": Q4_1}


def main() -> None:
    options = parser().parse_args()
    path = options.out / "random" / f"llama-1b-{options.kind}.gguf"
    vocabulary = fetch_gguf(options.vocabulary, options.out / "state")
    write_model(path, LLAMA_1B, vocabulary, kind=KINDS[options.kind], seed=options.seed)
    print(path)


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    it.add_argument("--kind", choices=KINDS, default="q4_0", help="how layers are stored")
    it.add_argument("--vocabulary", default="smollm2", help="a GGUF file, or a source of one")
    it.add_argument("--seed", type=int, default=0)
    it.add_argument("--out", type=Path, default=Path(".cache/benchmarks"), metavar="FOLDER")
    return it


if __name__ == "__main__":
    main()
