"""Models of the Hugging Face Hub, or of whatever HF_ENDPOINT points to."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import ModelFileError
from headrace.modelfiles.cache import MAX_NAME, cached, report_growth

Progress = Callable[[str, float], None]

_NAME = r"\w(?:[\w.-]*\w)?"
_SOURCE = re.compile(rf"({_NAME}/{_NAME})(?::([\w.-]+(?:/[\w.-]+)*))?", re.ASCII)
_WANTED = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json"
    r"|chat_template\.jinja|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
)


def fetch_repository(source: str, cache_dir: Path, progress: Progress) -> Path:
    """The folder of `org/name`, or the one file of `org/name:file`."""
    folder, repository, file = _place(source, cache_dir)
    cached(folder, lambda into: _fill(repository, file, into, progress))
    return folder / file if file else folder


def cached_repository(source: str, cache_dir: Path) -> Path | None:
    """The same where it was downloaded before, else None."""
    folder, _, file = _place(source, cache_dir)
    return (folder / file if file else folder) if folder.is_dir() else None


def repository_folder(source: str, cache_dir: Path) -> Path:
    """Where a repository is kept; ModelFileError for anything but ORG/NAME or ORG/NAME:FILE."""
    return _place(source, cache_dir)[0]


def _place(source: str, cache_dir: Path) -> tuple[Path, str, str | None]:
    """The folder, which no other repository has, the repository and the file in it."""
    match = _SOURCE.fullmatch(source)
    # The hub has no names with `--`, by which a folder tells its parts apart.
    if match is None or ".." in source or "--" in match[1] or len(source) > MAX_NAME:
        raise ModelFileError(f"hf:{source[:MAX_NAME]}: expected hf:ORG/NAME or hf:ORG/NAME:FILE")
    return cache_dir / source.replace("/", "--").replace(":", "--"), match[1], match[2]


def _fill(repository: str, file: str | None, into: Path, progress: Progress) -> None:
    try:
        import huggingface_hub  # noqa: F401, PLC0415  # an extra
    except ImportError:
        raise ModelFileError(
            f"hf:{repository}: models of the Hugging Face Hub need `pip install headrace[hf]`"
        ) from None
    try:
        _download(repository, file, into, progress)
    except ModelFileError:
        raise
    except Exception as error:  # its transport changed twice: requests, httpx, httpx2
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelFileError(f"hf:{repository}: cannot be downloaded: {reason}") from error


def _download(repository: str, file: str | None, into: Path, progress: Progress) -> None:
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415  # an extra

    info = HfApi().model_info(repository, files_metadata=True)
    files = _chosen(repository, info.siblings or [], file)
    report_growth(
        lambda: [
            hf_hub_download(repository, name, revision=info.sha, local_dir=into) for name in files
        ],
        into,
        lambda: sum(files.values()),
        lambda done: progress("downloading", done),
    )
    shutil.rmtree(into / ".cache", ignore_errors=True)  # the hub's own notes on the download


def _chosen(repository: str, siblings: list[Any], file: str | None) -> dict[str, int]:
    """The files to fetch and their sizes."""
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in siblings}
    if file is None:
        chosen = {name: size for name, size in sizes.items() if _WANTED.fullmatch(name)}
        if "config.json" not in chosen:
            ggufs = ", ".join(name for name in sizes if name.endswith(".gguf")) or "none"
            raise ModelFileError(
                f"hf:{repository}: holds no config.json; name one of its .gguf files "
                f"as hf:{repository}:FILE (there are: {ggufs})"
            )
        return chosen
    if file not in sizes:
        raise ModelFileError(f"hf:{repository}: holds no file {file!r}")
    return {file: sizes[file]}
