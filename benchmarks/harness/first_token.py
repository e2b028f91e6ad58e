"""What a server adds to the first token: before its engine has the request, and afterwards.

All processes of a machine share the monotonic clock, so the moments of client and worker compare.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.client import STATUS_OK, HttpClient, ServerError
from harness.peers import MODEL
from harness.summary import Percentiles, percentiles

NUM_TOKENS = 8  # of each answer whose first token is timed


@dataclass(frozen=True, slots=True)
class FirstToken:
    """One request as the client saw it, and how long its engine says it took to the first token."""

    sent: float
    seen: float
    engine_seconds: float

    @property
    def added(self) -> float:
        return self.seen - self.sent - self.engine_seconds


async def time_first_tokens(http: HttpClient, texts: Sequence[str]) -> list[FirstToken]:
    """One request after another."""
    return [await _time(http, text) for text in texts]


def split(tokens: Sequence[FirstToken], accepted: Sequence[float]) -> dict[str, Percentiles]:
    """Milliseconds added in all, and on either side of the engine.

    `accepted` are the moments at which the engine was handed the same requests.
    """
    pairs = list(zip(tokens, accepted, strict=True))
    for token, came in pairs:
        if not token.sent <= came <= token.seen:
            raise ValueError("a request reached the engine before it was sent or after its answer")
    return {
        "added": percentiles([token.added for token, _ in pairs]),
        "before_the_engine": percentiles([came - token.sent for token, came in pairs]),
        "after_the_engine": percentiles(
            [token.seen - came - token.engine_seconds for token, came in pairs]
        ),
    }


async def _time(http: HttpClient, text: str) -> FirstToken:
    stream = GenerateStream()
    body = {"model": MODEL, "prompt": text, "max_tokens": NUM_TOKENS, "temperature": 0}
    sent = time.monotonic()
    status = await http.exchange("POST", "/api/v1/generate", stream.feed, {**body, "stream": True})
    if status != STATUS_OK or stream.first is None or stream.engine_seconds is None:
        raise ServerError(f"HTTP {status} and no first token with its metrics")
    return FirstToken(sent, stream.first, stream.engine_seconds)


@dataclass(slots=True)
class GenerateStream:
    """Keeps when the first event came and what the last one says of the engine's first token."""

    first: float | None = None
    engine_seconds: float | None = None
    rest: bytes = field(default=b"")

    def feed(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self.first = self.first or now
                metrics = json.loads(line[6:]).get("metrics")
                if metrics:
                    self.engine_seconds = metrics["time_to_first_token_ms"] / 1e3
