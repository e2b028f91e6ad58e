"""One model on disk, opened: its shape, weights, tokenizer and chat template."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.weights import Weights


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What `open_model` found. `digest` names the exact content (for caches and fingerprints)."""

    path: Path
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str | None
    digest: str


def open_model(path: Path) -> ModelFiles:
    """Open a Hugging Face folder or a GGUF file; ModelFileError says what is wrong with it."""
    raise NotImplementedError
