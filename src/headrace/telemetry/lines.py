"""Where finished lines go: standard error, or a file that is rotated. Knows nothing of their form.

Handlers of the standard logging, which lines of our own reach without a record: a record looks for
its caller, and a rotated file formats it twice.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any


class Lines(logging.StreamHandler[Any]):
    """A stream; whatever goes wrong with it is told on standard error and raised nowhere."""

    _held: list[str] | None = None  # while they are to be written together

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler: who logs must not fail of it
            self.handleError(record)

    def write(self, line: str) -> None:
        """Take a finished line, from any thread."""
        self.acquire()
        try:
            self._take(line)
        except Exception:  # noqa: BLE001 - as above
            self.handleError(logging.makeLogRecord({"msg": line}))
        finally:
            self.release()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what comes within in one go, at the end; other threads wait until then."""
        self.acquire()
        self._held = held = list[str]()
        try:
            yield
        finally:
            self._held = None
            self._put_held(held)
            self.release()

    def _take(self, line: str) -> None:
        if self._held is None:
            self._put([line])
        else:
            self._held.append(line)

    def _put_held(self, lines: list[str]) -> None:
        try:
            if lines:
                self._put(lines)
        except Exception:  # noqa: BLE001 - as above
            self.handleError(logging.makeLogRecord({"msg": "\n".join(lines)}))

    def _put(self, lines: Sequence[str]) -> None:
        self.stream.write("\n".join((*lines, "")))
        self.stream.flush()


class RotatedLines(Lines, RotatingFileHandler):
    """A file that is moved aside when the next line would not fit."""

    _size: int  # bytes

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        self._size = os.fstat(stream.fileno()).st_size
        return stream

    def _put(self, lines: Sequence[str]) -> None:
        num_bytes = sum(len(line.encode()) + 1 for line in lines)
        if self.stream is None:  # the last rollover could not open its file
            self.stream = self._open()
        if self._size + num_bytes > self.maxBytes > 0:
            if len(lines) > 1:  # some of them may fit
                for line in lines:
                    self._put([line])
                return
            self._make_room()
        self._size += num_bytes
        super()._put(lines)

    def _make_room(self) -> None:
        path = Path(self.baseFilename)
        if path.is_file() or not path.exists():  # somebody may have moved it; a pipe is no file
            self.doRollover()


class LineLogger:
    """What structlog calls a logger: takes lines that its processors have finished."""

    def __init__(self, lines: Lines) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = lines.write
