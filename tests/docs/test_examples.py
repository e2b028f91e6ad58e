"""Every python and bash example of the README and the docs, and every file in examples/."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_server import RealServer, cache_dir, environment

ROOT = Path(__file__).parents[2]
FILES = [
    "openai_chat.py",
    "openai_stream.py",
    "offline.py",
    "curl.sh",
    "hot_swap.py",
    "canary.py",
    "ab_test.py",
]
RUN_ELSEWHERE = {"gateway.toml"}  # in tests/e2e
URL = "http://127.0.0.1:8000"
# curl alone calls a refusal a success
PRELUDE = 'set -euo pipefail\ncurl() { command curl --fail-with-body -sS "$@"; }\n'
FENCED = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def blocks() -> Iterator[tuple[str, str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, (language, text) in enumerate(FENCED.findall(page.read_text())):
            yield f"{page.relative_to(ROOT)}:{number}", language, text


BLOCKS = list(blocks())


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which examples find the tests' models and the `headrace` command."""
    state = tmp_path_factory.mktemp("state")
    (state / "headrace").symlink_to(cache_dir())
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return environment(XDG_STATE_HOME=str(state), PATH=path)


def run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        env=env,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize(
    ("language", "text"), [block[1:] for block in BLOCKS], ids=[block[0] for block in BLOCKS]
)
def test_an_example_of_the_docs_runs(
    server: RealServer, env: dict[str, str], language: str, text: str
) -> None:
    text = text.replace(URL, server.url)
    command = [sys.executable, "-W", "error", "-c", text]
    run(["bash", "-c", PRELUDE + text] if language == "bash" else command, env)


@pytest.mark.parametrize("name", FILES)
def test_an_example_file_runs(server: RealServer, env: dict[str, str], name: str) -> None:
    command = ["bash"] if name.endswith(".sh") else [sys.executable, "-W", "error"]
    assert run([*command, str(ROOT / "examples" / name), server.url], env)


def test_every_example_file_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").iterdir() if path.is_file()} == {
        *FILES,
        *RUN_ELSEWHERE,
    }
