"""Lines of the access log: one a request, written a moment after it ended, many at once.

Whoever was just answered asks again at once, and should not wait for a line; and lines of a moment
together cost less than each alone.
"""

import asyncio
from typing import NamedTuple

import structlog
from structlog.typing import FilteringBoundLogger

from headrace.api.exchange import Exchange
from headrace.telemetry.logging import lines_together

LOG_DELAY = 0.02  # seconds
_QUIET = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})

log = structlog.get_logger("headrace.api")


class AccessLine(NamedTuple):
    """What a line says of one request, and never a prompt."""

    method: str
    path: str
    exchange: Exchange
    status: int
    seconds: float


class AccessLines:
    """Those that are to be written."""

    def __init__(self) -> None:
        self._lines: list[AccessLine] = []

    def add(self, line: AccessLine) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_later(LOG_DELAY, self._write)
        self._lines.append(line)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        logger = log.bind()  # once, which takes as long as half a line
        with lines_together():
            for line in lines:
                _write(line, logger)


def _write(line: AccessLine, logger: FilteringBoundLogger) -> None:
    exchange = line.exchange
    write = logger.debug if exchange.route in _QUIET else logger.info
    fields = {
        "request_id": exchange.request_id,
        "method": line.method,
        "path": line.path,
        "status": line.status,
        "duration_ms": round(line.seconds * 1e3, 2),
        "bytes": exchange.num_bytes,
    }
    if exchange.model_id is not None:
        fields["model"] = exchange.model_id
    if exchange.error_code is not None:
        fields["error"] = exchange.error_code
    if exchange.prompt_tokens is not None:
        fields["prompt_tokens"] = exchange.prompt_tokens
    if exchange.completion_tokens is not None:
        fields["completion_tokens"] = exchange.completion_tokens
    write("http.request", **fields)
