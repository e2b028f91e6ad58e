"""One HTTP exchange as the middleware, the routes and the access log share it."""

import math
import os
import time
from collections.abc import Callable
from typing import cast

import msgspec
from starlette.types import Scope

from headrace.errors import InvalidRequestError
from headrace.generation import GenerationRequest
from headrace.routing.rollouts.shadow import Answer

_KEY = "headrace.exchange"
TIMEOUT_HEADER = "X-Request-Timeout"

Mirror = Callable[[GenerationRequest, Answer], None]
Headers = tuple[tuple[bytes, bytes], ...]

# What a browser must not do with an answer.
SECURITY_HEADERS: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


class Exchange(msgspec.Struct, kw_only=True):
    """Filled while a request is answered; read by the access log at its end."""

    request_id: str
    request_headers: dict[bytes, bytes] = {}  # names in lower case
    headers: Headers = ()  # of the answer, besides those that its route gives it
    arrived: float = msgspec.field(default_factory=time.monotonic)
    route: str | None = None
    body: bytes | None = None  # of the request, when it was there at once; for one reader
    is_body_arriving: bool = False  # while somebody waits for it
    status: int | None = None  # once the answer has begun
    model_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ttft: float | None = None  # seconds to the first token
    error_code: str | None = None
    num_bytes: int = 0  # of the body that went out
    client_left: bool = False
    mirror: Mirror | None = None  # wants the request and its answer

    def header(self, name: str) -> str | None:
        """A header of the request; of several the first."""
        value = self.request_headers.get(name.lower().encode())
        return None if value is None else value.decode("latin-1")

    def take_body(self) -> bytes | None:
        """Not kept for as long as the answer takes."""
        body, self.body = self.body, None
        return body

    def deadline(self, limit: float) -> float:
        """When the answer must be there, on the monotonic clock: the caller may only shorten it."""
        header = self.header(TIMEOUT_HEADER)
        return self.arrived + (limit if header is None else min(limit, _seconds(header)))


def attach(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    return cast("Exchange", scope[_KEY])


def new_id() -> str:
    """One of its kind anywhere: 128 random bits."""
    return os.urandom(16).hex()


def _seconds(header: str) -> float:
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequestError(
            f"{TIMEOUT_HEADER} must be a number of seconds above 0, got {header[:50]!r}.",
            param=TIMEOUT_HEADER,
        )
    return seconds
