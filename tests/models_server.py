"""A server that speaks /api/v1/models from a script, over real HTTP in a thread."""

import json
import threading
from collections import deque
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

BREAK = "break"
"""As the last item of a stream: the connection ends in the middle of it."""
HOLD = "hold"
"""As the last item of a stream: nothing more comes, and it does not end."""

EVENTS = "GET /api/v1/models/events"


def model(model_id: str = "chat@2", **fields: Any) -> dict[str, Any]:
    """A version as the server tells of it."""
    name, _, version = model_id.partition("@")
    known = {
        "model_id": model_id,
        "name": name,
        "version": int(version),
        "state": "ready",
        "active": False,
        "answering": True,
        "progress": 1.0,
        "phase": "",
        "health_score": 1.0,
        "memory_bytes": 200 << 20,
        "started_at": 1_700_000_000.5,
        "loaded_at": 1_700_000_002.0,
        "reason": None,
        "replicas": 1,
        "restarts": 0,
        "leases": 0,
        "executor": "native-avx2",
        "precision": "w8a16",
    }
    return known | fields


def endpoint(name: str, **fields: Any) -> dict[str, Any]:
    """An upstream as the server tells of it."""
    known = {
        "name": name,
        "kind": "upstream",
        "taking": True,
        "breaker": "closed",
        "in_flight": 0,
        "latency_seconds": None,
        "weight": 1.0,
        "reason": None,
    }
    return known | fields


def loading(model_id: str = "chat@2", phase: str = "fetching", progress: float = 0.5) -> Any:
    unknown = dict.fromkeys(("health_score", "loaded_at", "executor", "precision"))
    return model(
        model_id, state="loading", answering=False, phase=phase, progress=progress, **unknown
    )


def refusal(code: str, message: str, **more: Any) -> dict[str, Any]:
    error = {"message": message, "type": "t", "param": None, "code": code, "request_id": "r"}
    return {"error": error, **more}


def report(*, safe: bool, model_id: str = "chat@2") -> dict[str, Any]:
    score = {"name": "health_score", "passed": safe, "detail": "0.95" if safe else "0.50, low"}
    active = {"name": "not_already_active", "passed": True, "detail": "not active"}
    return {"model_id": model_id, "safe": safe, "checks": [score, active]}


class ModelsServer:
    """Answers "METHOD /path" with what `answers` has, each events request with the next stream."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.streams: deque[Sequence[Any]] = deque()
        self.requests: list[tuple[str, Any]] = []
        self.held: dict[str, threading.Event] = {}
        self.is_over = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Request)
        self._http.script = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def hold(self, route: str) -> threading.Event:
        """Never answer it; the event tells that it was asked."""
        return self.held.setdefault(route, threading.Event())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Hands the script to each request."""

    script: ModelsServer


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer(json.loads(body) if body else None)

    def _answer(self, body: Any) -> None:
        script = self.server.script
        route = f"{self.command} {self.path}"
        script.requests.append((route, body))
        if route == EVENTS and EVENTS not in script.answers:
            self._stream(script.streams.popleft())
        elif route in script.held:
            script.held[route].set()
            self._leave(hold=True)
        else:
            self._send(*script.answers[route])

    def _send(self, status: int, answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, items: Sequence[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for item in items:
            if item in (HOLD, BREAK):
                self._leave(hold=item == HOLD)
                return
            self._chunk(item if isinstance(item, str) else event(item))
        self._chunk("")

    def _leave(self, *, hold: bool) -> None:
        if hold:
            self.server.script.is_over.wait()
        self.close_connection = True

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


def event(data: Any, name: str = "model") -> str:
    # as the server does it: what is no ASCII goes as it is
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
