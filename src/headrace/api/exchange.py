"""One HTTP exchange as the middleware, the routes and the access log share it."""

import math
import time
from dataclasses import dataclass, field
from typing import cast

from starlette.types import Scope

from headrace.errors import InvalidRequestError

_KEY = "headrace.exchange"
TIMEOUT_HEADER = "X-Request-Timeout"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Filled while a request is answered; read by the access log at its end."""

    request_id: str
    arrived: float = field(default_factory=time.monotonic)
    model_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error_code: str | None = None
    num_bytes: int = 0  # of the body that went out
    client_left: bool = False

    def deadline(self, timeout_header: str | None, limit: float) -> float:
        """When the answer must be there, on the monotonic clock: the caller may only shorten it."""
        if timeout_header is None:
            return self.arrived + limit
        return self.arrived + min(limit, _seconds(timeout_header))


def attach(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    return cast("Exchange", scope[_KEY])


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
