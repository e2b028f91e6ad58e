"""A candidate that is too slow is sent back: `python examples/canary.py`.

Starts two upstreams, of which the second takes long for every third answer, and a Headrace in front
of them. A rollout gives the second one a tenth of the users, and its guard finds out.
"""

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import httpx

from headrace.client import Client
from headrace.errors import HeadraceError

SLOW = 1 / 3  # of the flawed upstream's answers
SECONDS, SLOW_SECONDS = 0.002, 0.05
VISITORS = 8
USERS = 1000
MODELS = b'{"object":"list","data":[{"id":"demo","object":"model"}]}'
ANSWER = (
    b'{"id":"1","object":"text_completion","created":1,"model":"demo","choices":[{"index":0,'
    b'"text":" grind grain.","finish_reason":"stop","logprobs":null}],'
    b'"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7}}'
)


def main() -> None:
    with upstreams() as upstream, headrace(upstream) as url, Client(url) as client:
        load_candidate(client, f"{upstream}/flawed/v1")
        rollout = client.rollouts.start(
            "demo",
            "demo@2",
            guards={"max_latency_ratio": 1.5},
            stages=[10, 50, 100],
            stage_seconds=60,
        )
        with visitors(url) as answers:
            end = watch(client, rollout.rollout_id)
        active = next(each.model_id for each in client.models.list() if each.active)
        print(f"{end}; {active} is active; answers: {dict(answers)}")
        if end != "rolled_back":
            raise SystemExit("the candidate should have been sent back")


def load_candidate(client: Client, source: str) -> None:
    client.models.load("demo", source, version=2)
    while client.models.get("demo@2").state != "ready":
        time.sleep(0.1)


def watch(client: Client, rollout_id: str) -> str:
    """Show each decision; returns how it ended."""
    shown = 0
    while True:
        rollout = client.rollouts.get(rollout_id)
        for decision in rollout.decisions[shown:]:
            print(f"{decision.kind} at {decision.stage_percent:g} %: {decision.reason}")
        shown = len(rollout.decisions)
        if rollout.is_over:
            return rollout.state
        time.sleep(0.5)


@contextmanager
def visitors(url: str) -> Iterator[Counter[str]]:
    """People who ask, each again and again; counts the statuses of their answers by version."""
    answers: Counter[str] = Counter()
    is_over = threading.Event()

    def visit(number: int) -> None:
        random = Random(number)
        with httpx.Client(base_url=url, timeout=60) as http:
            while not is_over.is_set():
                body = {
                    "model": "demo",
                    "prompt": "Water mills",
                    "user": f"user-{random.randrange(USERS)}",
                }
                answer = http.post("/v1/completions", json=body)
                version = answer.headers.get("X-Headrace-Version", "nobody")
                answers[f"{version} {answer.status_code}"] += 1

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(VISITORS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@contextmanager
def headrace(upstream: str) -> Iterator[str]:
    """A server of `demo`, whose version 1 is the sound upstream."""
    with socket.create_server(("127.0.0.1", 0)) as free, TemporaryDirectory() as folder:
        port = free.getsockname()[1]
        free.close()
        config = Path(folder, "headrace.toml")
        config.write_text(
            f'[server]\nport = {port}\nstate_dir = "{folder}"\nupstream_roots = ["{upstream}"]\n'
            f'[[models]]\nname = "demo"\nsource = "{upstream}/sound/v1"\n'
        )
        command = [sys.executable, "-m", "headrace", "serve", "--config", str(config)]
        with (
            Path(folder, "log").open("w") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as server,  # noqa: S603 - our own
        ):
            try:
                url = f"http://127.0.0.1:{port}"
                wait_for(url)
                yield url
            finally:
                server.terminate()


def wait_for(url: str) -> None:
    for _ in range(300):
        try:
            if httpx.get(f"{url}/health/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise HeadraceError("the server did not start")


@contextmanager
def upstreams() -> Iterator[str]:
    """Both of them, on one port: below /sound and below /flawed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Upstream(BaseHTTPRequestHandler):
    """Speaks as much of OpenAI's API as a completion takes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    random = Random(7)

    def do_GET(self) -> None:
        self.answer(200 if self.path.endswith("/v1/models") else 404, MODELS)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        is_slow = self.path.startswith("/flawed") and self.random.random() < SLOW
        time.sleep(SLOW_SECONDS if is_slow else SECONDS)
        self.answer(200, ANSWER)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


if __name__ == "__main__":
    main()
