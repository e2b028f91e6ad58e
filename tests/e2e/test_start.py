"""How the server starts, and how it says that it cannot."""

import os
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from headrace.modelfiles.sources import fetch
from real_server import MODEL, RealServer, cache_dir, command, environment


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The one line with which `headrace serve` refuses to start."""
    done = subprocess.run(
        command("serve", *arguments, "--state-dir", str(cache_dir())),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=cwd,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert "missing.gguf" in refused("missing.gguf", "--port", "0", cwd=tmp_path)


def test_a_truncated_file_is_one_line(server: RealServer, tmp_path: Path) -> None:
    assert server.url  # so the model is in the cache
    whole = fetch(MODEL, cache_dir(), lambda _phase, _share: None)
    short = tmp_path / "short.gguf"
    with whole.open("rb") as file:
        short.write_bytes(file.read(whole.stat().st_size // 2))
    assert "short.gguf" in refused(str(short), "--port", "0")


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(MODEL, "--port", port)
    assert port in line
    assert "in use" in line


def test_a_bad_key_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text("[server]\nprot = 8000\n")
    line = refused(MODEL, "--config", str(config))
    assert line == f"error: {config}: server.prot: unknown key (did you mean port?)"


def test_an_unknown_option_is_one_line() -> None:
    assert "No such option: --prot" in refused(MODEL, "--prot", "1")


def test_an_open_host_is_refused_unless_permitted() -> None:
    assert "--host: 0.0.0.0 can be reached" in refused(MODEL, "--host", "0.0.0.0")


@pytest.mark.slow
def test_a_second_start_uses_the_cache(server: RealServer) -> None:
    assert server.url
    files = {path: path.stat().st_mtime_ns for path in _model_files()}
    # an index that nobody serves: a download would fail
    no_index = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull}
    with RealServer((f"again={MODEL}",), env=no_index) as again:
        body = {"model": "again", "prompt": "Hello", "max_tokens": 1}
        httpx.post(f"{again.url}/v1/completions", json=body, timeout=60).raise_for_status()
    assert {path: path.stat().st_mtime_ns for path in _model_files()} == files


def _model_files() -> list[Path]:
    return [path for path in (cache_dir() / "models").rglob("*") if path.is_file()]
