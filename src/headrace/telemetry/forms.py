"""What a log line looks like: JSON, or text for people. Knows nothing of where it goes.

The looks are structlog's, which renders whatever is out of the ordinary. An access log writes a
line a request, so that the ordinary line is made here, at a fraction of the cost.
"""

import io
import json
import re
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import msgspec
import structlog

Event = MutableMapping[str, Any]

_EVENT_WIDTH = 30
_LEVEL_WIDTH = len("exception")
_EXTRAORDINARY = frozenset(
    {"exc_info", "exception", "stack", "stack_info", "logger", "logger_name"}
)
_needs_quotes = re.compile(r"""[ \t=\r\n"']""").search
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def add_time(_logger: object, _name: str, event: Event) -> Event:
    """The moment in UTC, as ISO 8601 has it."""
    second, microsecond = divmod(time.time_ns() // 1000, 1_000_000)
    event["timestamp"] = f"{_date_and_time(second)}.{microsecond:06}Z"
    return event


def render_json(_logger: object, _name: str, event: Event) -> str:
    """For a terminal too: all that is not ASCII is escaped."""
    try:
        line = _encode(event)
    except (ValueError, TypeError, OverflowError, RecursionError):
        # Half of a surrogate pair, a key that is no string, a number that is too long.
        return _any_json(event)
    return line.decode() if line.isascii() else _any_json(event)


class TextRenderer:
    """Time, level, event, fields by name; in colours on a terminal."""

    def __init__(self, *, colors: bool) -> None:
        self._is_plain = not colors
        self._render_any = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_trace)

    def __call__(self, logger: object, name: str, event: Event) -> str:
        if not self._is_ordinary(event):
            return self._render_any(logger, name, event)
        timestamp, level, what = (event.pop(key) for key in ("timestamp", "level", "event"))
        start = f"{timestamp} [{level:{_LEVEL_WIDTH}}] {what!s:{_EVENT_WIDTH}}"
        fields = (f"{key}={_shown(event[key])}" for key in sorted(event))
        return " ".join((start, *fields)).rstrip(" ")

    def _is_ordinary(self, event: Event) -> bool:
        return self._is_plain and "event" in event and _EXTRAORDINARY.isdisjoint(event)


def escaped(text: str) -> str:
    """For a terminal, which would obey what a stranger wrote into a path."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or character == "\n":  # the renderer quotes lines of a value
        return character
    return character.encode("unicode_escape").decode()


def _trace(out: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Without values of local variables: prompts and keys are among them."""
    trace = io.StringIO()
    structlog.dev.plain_traceback(trace, exc_info)
    out.write(escaped(trace.getvalue()))


def _any_json(event: Event) -> str:
    return json.dumps(event, default=repr, separators=(",", ":"))


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)
    return repr(value) if _needs_quotes(value) else value


@lru_cache(maxsize=2)
def _date_and_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
