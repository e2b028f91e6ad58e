"""Runs the real huggingface_hub against a hub of our own on loopback."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.huggingface_hub import fetch_repository
from modelfiles.tiny import write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves what the hub serves for one repository: its listing, and its files by commit."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files = files
        self.asked: list[str] = []
        self.cut_short = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Requests(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append(path)
        listing, resolve = "/api/models/org/tiny", f"/org/tiny/resolve/{COMMIT}/"
        if path in (listing, f"{listing}/revision/main"):
            self.reply(200, self.listing(), {"Content-Type": "application/json"}, body=body)
        elif path.startswith(resolve) and path.removeprefix(resolve) in self.server.files:
            content = self.server.files[path.removeprefix(resolve)]
            etag = hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
            self.reply(200, content, headers, body=body)
        else:
            self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)

    def listing(self) -> bytes:
        siblings = [{"rfilename": n, "size": len(c)} for n, c in self.server.files.items()]
        info: dict[str, Any] = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}
        return json.dumps(info).encode()

    def reply(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            short = self.server.cut_short and "resolve" in self.path
            self.wfile.write(content[: len(content) // 2] if short else content)
            self.close_connection = short

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    write_folder(tmp_path / "origin")
    files = {path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()}
    server = FakeHub(
        {**files, "m.gguf": b"GGUF" * 1000, "pytorch_model.bin": b"x", "sub/a.py": b""}
    )
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


FETCH = """
import sys
from pathlib import Path
from headrace.errors import ModelFileError
from headrace.modelfiles.sources import fetch
try:
    print(fetch(sys.argv[1], Path(sys.argv[2]), lambda *_: None))
except ModelFileError as error:
    sys.exit(f"refused: {error}")
"""


def run_fetch(hub: FakeHub, source: str, state: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, for the library reads HF_ENDPOINT when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(state / "home")}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", FETCH, source, str(state)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_repository_is_fetched_without_foreign_files(hub: FakeHub, tmp_path: Path) -> None:
    done = run_fetch(hub, "hf:org/tiny", tmp_path / "state")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    hub.asked.clear()
    again = run_fetch(hub, "hf:org/tiny", tmp_path / "state")
    assert again.stdout == done.stdout
    assert hub.asked == []


def test_one_file_of_a_repository_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    done = run_fetch(hub, "hf:org/tiny:m.gguf", tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == hub.files["m.gguf"]


def test_a_download_cut_short_is_never_taken_for_whole(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_short = True
    done = run_fetch(hub, "hf:org/tiny:m.gguf", tmp_path / "state")
    assert "refused: hf:org/tiny: cannot be downloaded" in done.stderr
    hub.cut_short = False
    done = run_fetch(hub, "hf:org/tiny:m.gguf", tmp_path / "state")
    assert Path(done.stdout.strip()).read_bytes() == hub.files["m.gguf"]


def test_what_is_not_there_is_one_clear_line(hub: FakeHub, tmp_path: Path) -> None:
    missing = run_fetch(hub, "hf:org/nothing", tmp_path / "state")
    assert missing.stderr.startswith("refused: hf:org/nothing: cannot be downloaded: 404")
    file = run_fetch(hub, "hf:org/tiny:no.gguf", tmp_path / "state")
    assert file.stderr == "refused: hf:org/tiny: holds no file 'no.gguf'\n"
    del hub.files["config.json"]
    bare = run_fetch(hub, "hf:org/tiny", tmp_path / "state")
    assert "name one of its .gguf files as hf:org/tiny:FILE (there are: m.gguf)" in bare.stderr


def test_the_extra_is_named_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match=r"need `pip install headrace\[hf\]`"):
        fetch_repository("org/tiny", tmp_path, lambda *_: None)


@pytest.mark.parametrize("source", ["", "tiny", "org/tiny/x", "../x", "org/..", "org/tiny:../x"])
def test_what_is_no_repository_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected hf:ORG/NAME or hf:ORG/NAME:FILE"):
        fetch_repository(source, tmp_path, lambda *_: None)
