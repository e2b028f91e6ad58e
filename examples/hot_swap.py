"""A swap that nobody notices, and back again: `python examples/hot_swap.py [URL]`.

Loads the next version of the served model with 4-bit weights and swaps to it, while a thread keeps
asking.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import httpx

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = httpx.Client(base_url=f"{url}/api/v1", timeout=60)


def main() -> None:
    with client, Visitor() as visitor:
        version = load("smollm2", {"precision": "w4a16"})
        safety(version)
        move("swap", {"model_id": version})
        visitor.wait_for(version)
        before = move("rollback", {"name": "smollm2"})
        visitor.wait_for(before)
        post(f"models/{version}/unload")
    print(f"answered by {dict(visitor.answers)}, {visitor.num_failed} failed")


def load(name: str, engine: dict[str, str]) -> str:
    """Load the next version beside the one that answers, and show how it goes until it is ready."""
    version = str(post("models/load", {"name": name, "source": name, "engine": engine})["model_id"])
    for model in events():
        if model["model_id"] == version:
            print(f"{version} {model['state']} {model['phase']} {model['progress']:.0%}")
            if model["state"] == "failed":
                raise SystemExit(f"{version}: {model['reason']}")
            if model["state"] == "ready":
                break
    return version


def events() -> Iterator[dict[str, Any]]:
    """Each version as it is, then each one that changes."""
    with client.stream("GET", "models/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def safety(version: str) -> None:
    report = client.get(f"models/{version}/swap/safety").raise_for_status().json()
    for check in report["checks"]:
        print(f"{'ok ' if check['passed'] else 'NO '} {check['name']}: {check['detail']}")


def move(kind: str, body: dict[str, str]) -> str:
    """Swap or roll back; returns the version that answers from now on."""
    done = post(f"models/{kind}", body)
    print(f"{kind}: {done['previous']} -> {done['active']} in {done['duration_ms']:.0f} ms")
    return str(done["active"])


def post(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = client.post(path, json=body)
    if answer.is_error:
        raise SystemExit(answer.json()["error"]["message"])
    decoded: dict[str, Any] = answer.json()
    return decoded


class Visitor:
    """Asks without a pause, in a thread of its own, and counts who answered."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.num_failed = 0
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, version: str) -> None:
        """Return once that version has given one more answer."""
        with self._changed:
            count = self.answers[version]
            self._changed.wait_for(lambda: self.answers[version] > count, timeout=60)

    def _run(self) -> None:
        body = {"model": "smollm2", "prompt": "Water mills were used to", "max_tokens": 16}
        with httpx.Client(base_url=f"{url}/api/v1", timeout=60) as own:
            while not self._is_over.is_set():
                answer = own.post("generate", json=body)
                with self._changed:
                    self.num_failed += answer.is_error
                    self.answers[answer.headers.get("X-Headrace-Version", "nobody")] += 1
                    self._changed.notify_all()


if __name__ == "__main__":
    main()
