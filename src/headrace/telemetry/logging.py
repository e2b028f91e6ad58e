"""Where log lines go and what they look like: events with fields, as text or JSON.

Lines of libraries that use the standard logging pass through the same processors. Values under
secret-looking keys never reach a line.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import structlog

from headrace.telemetry.forms import Event, TextRenderer, add_time, escaped, render_json
from headrace.telemetry.lines import LineLogger, Lines, RotatedLines

FILE_NAME = "headrace.log"
MAX_FILE_BYTES = 64 << 20
KEPT_FILES = 5
SECRET_KEYS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"}
    | {"api_key", "password", "secret", "token", "access_token"}
)

LogFormat = Literal["json", "text"]


def configure_logging(
    *,
    log_format: LogFormat,
    log_dir: Path | None = None,
    file_name: str = FILE_NAME,
    level: int = logging.INFO,
) -> None:
    """Send everything to stderr, or to a rotated file in `log_dir`, of which one process writes."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    lines = _lines(log_dir, file_name)
    renderers = _renderers(log_format, colors=log_dir is None and sys.stderr.isatty())
    lines.setFormatter(_library_formatter(renderers))
    root.addHandler(lines)
    root.setLevel(level)
    # What uvicorn says below a warning (started, shutting down) our own events say better.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logger = LineLogger(lines)
    structlog.configure(
        processors=[*_shared(), *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_name: logger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def lines_together() -> Iterator[None]:
    """Write what is logged within in one go, at the end: a write costs more than a line."""
    with ExitStack() as stack:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, Lines):
                stack.enter_context(handler.together())
        yield


def redact_secrets(_logger: object, _name: str, event: Event) -> Event:
    if not SECRET_KEYS.isdisjoint(event):
        for key in event.keys() & SECRET_KEYS:
            event[key] = "[redacted]"
    return event


def escape_unprintable(_logger: object, _name: str, event: Event) -> Event:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value)
    return event


def _lines(log_dir: Path | None, file_name: str) -> Lines:
    if log_dir is None:
        return Lines(sys.stderr)
    log_dir.mkdir(parents=True, exist_ok=True)
    return RotatedLines(
        log_dir / file_name, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8"
    )


def _shared() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        add_time,
        redact_secrets,
    ]


def _renderers(log_format: LogFormat, *, colors: bool) -> list[structlog.typing.Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, render_json]
    return [escape_unprintable, TextRenderer(colors=colors)]


def _library_formatter(renderers: list[structlog.typing.Processor]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )
