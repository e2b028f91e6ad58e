"""Where log lines go and what they look like: events with fields, as text or JSON.

Lines of libraries that use the standard logging pass through the same processors. Values under
secret-looking keys never reach a line.
"""

import logging
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal

import structlog

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


def redact_secrets(
    _logger: object, _name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key in event.keys() & SECRET_KEYS:
        event[key] = "[redacted]"
    return event


def escape_unprintable(
    _logger: object, _name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """For a terminal, which would obey what a stranger wrote into a path."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(map(_shown, value))
    return event


def _shown(character: str) -> str:
    if character.isprintable() or character == "\n":  # the renderer quotes lines of a value
        return character
    return character.encode("unicode_escape").decode()


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
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact_secrets,
    ]


def _renderers(log_format: LogFormat, *, colors: bool) -> list[structlog.typing.Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # No values of local variables in a trace: prompts and keys are among them.
    plain = structlog.dev.plain_traceback
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
    return [escape_unprintable, console]


def _library_formatter(renderers: list[structlog.typing.Processor]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )
