"""One model on disk, opened: its shape, weights, tokenizer and chat template."""

from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from headrace.errors import ModelFileError
from headrace.modelfiles.checkpoint import CheckpointWeights, Entry, add_one, digest
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.gguf import open_gguf
from headrace.modelfiles.gguf_config import gguf_entries, read_gguf_config, stored_tensor
from headrace.modelfiles.gguf_tokenizer import GGUFVocabulary
from headrace.modelfiles.hf_config import read_hf_config
from headrace.modelfiles.hf_tokenizer import HFTokenizerFiles
from headrace.modelfiles.safetensors import SafetensorsFile, open_folder, parse_json
from headrace.modelfiles.weights import StoredTensor, Weights


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What `open_model` found. `digest` names the exact content (for caches and fingerprints)."""

    path: Path
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    digest: str


def open_model(path: Path) -> ModelFiles:
    """Open a Hugging Face folder or a GGUF file; ModelFileError says what is wrong with it."""
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise ModelFileError(f"{path}: no such file or folder")
    if path.suffix != ".gguf":
        raise ModelFileError(f"{path}: not a model; expected a .gguf file or a folder")
    return _open_gguf(path)


def open_weights(path: Path) -> tuple[ModelConfig, Weights]:
    """The shape and tensors of a model alone, for those who ask how large they are.

    Reads headers only, so the tensors are as they lie in the file: of the right kind and shape, and
    not in the order, nor with the values, that `open_model` gives. No end-of-text tokens either.
    """
    config, entries = _folder_entries(path) if path.is_dir() else _gguf_entries(path)
    unchanged = {name: replace(entry, change=None) for name, entry in entries.items()}
    return config, CheckpointWeights(path, unchanged, config)


def _folder_entries(folder: Path) -> tuple[ModelConfig, dict[str, Entry]]:
    path = _config_path(folder)
    config = read_hf_config(str(path), parse_json(path, path.read_bytes()))
    return config, _entries(open_folder(folder), config)


def _gguf_entries(path: Path) -> tuple[ModelConfig, dict[str, Entry]]:
    file = open_gguf(path)
    config = read_gguf_config(file)
    return config, gguf_entries(file, config)


def _open_gguf(path: Path) -> ModelFiles:
    file = open_gguf(path)
    config = read_gguf_config(file)
    vocabulary = GGUFVocabulary(file)
    config = replace(config, eos_token_ids=vocabulary.eos_token_ids)
    return ModelFiles(
        path=path,
        config=config,
        weights=CheckpointWeights(path, gguf_entries(file, config), config),
        tokenizer=vocabulary.build(),
        bos_token=vocabulary.bos_token,
        eos_token=vocabulary.eos_token,
        chat_template=vocabulary.chat_template,
        digest=digest(
            [file.data[: file.header_size].tobytes()],
            (stored_tensor(file, name) for name in file.tensors),
        ),
    )


def _open_folder(folder: Path) -> ModelFiles:
    config_path = _config_path(folder)
    raw_config = config_path.read_bytes()
    texts = HFTokenizerFiles(folder)
    raw = parse_json(config_path, raw_config)
    tokenizer = texts.tokenizer()
    config = read_hf_config(str(config_path), raw)
    config = replace(config, eos_token_ids=texts.eos_token_ids(raw, tokenizer))
    files = open_folder(folder)
    return ModelFiles(
        path=folder,
        config=config,
        weights=CheckpointWeights(folder, _entries(files, config), config),
        tokenizer=tokenizer,
        bos_token=texts.bos_token,
        eos_token=texts.eos_token,
        chat_template=texts.chat_template(),
        digest=digest(
            [raw_config, tokenizer.to_str().encode(), *(file.header for file in files)],
            (tensor for file in files for tensor in file.tensors().values()),
        ),
    )


def _config_path(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelFileError(f"{folder}: holds no config.json")
    return path


# Where the decoder lies inside a checkpoint: bare, alone, or beside a vision tower (old, new).
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")


def _entries(files: list[SafetensorsFile], config: ModelConfig) -> dict[str, Entry]:
    found: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
    for file in files:
        found.update((name, (file, tensor)) for name, tensor in file.tensors().items())
    prefix = next((p for p in _PREFIXES if p + "embed_tokens.weight" in found), "model.")
    entries = {}
    for name, (file, tensor) in found.items():
        if name.startswith(prefix):
            ours = "model." + name.removeprefix(prefix)
        elif name.endswith("lm_head.weight"):
            ours = "lm_head.weight"
        else:
            continue
        change = add_one if config.post_norms and ours.endswith("norm.weight") else None
        entries[ours] = Entry(file.path, name, tensor, change)
    return entries
