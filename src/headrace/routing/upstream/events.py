"""Server-sent events out of bytes in any pieces, as WHATWG's HTML standard, section 9.2, has them.

Lines end in LF or CRLF; a lone CR, which JSON never holds, does not end one. Knows no JSON.
"""

from typing import NamedTuple

MAX_EVENT_BYTES = 16 << 20


class EventTooLargeError(ValueError):
    """A line or an event has no end within the bound."""


class Event(NamedTuple):
    """`name` is empty where the server gave none."""

    name: bytes
    data: bytes


class EventParser:
    """Holds at most `max_bytes` of an event that has not ended, and the piece just fed."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()  # one without its end so far
        self._size = 0  # of the event's lines
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[Event]:
        """The events that end in this piece; one cut off by the end of all pieces is none."""
        first, *others = piece.split(b"\n")
        self._line += first
        if not others:
            self._check(len(self._line))
            return []
        lines = [bytes(self._line), *others]
        self._line = bytearray(lines.pop())
        events: list[Event] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        self._check(len(self._line))
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        self._check(len(line) + 1)
        if not line:
            if self._data:
                events.append(Event(self._name, b"\n".join(self._data)))
            self._name, self._data, self._size = b"", [], 0
        elif not line.startswith(b":"):
            self._size += len(line) + 1
            self._field(line)

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _check(self, num_more: int) -> None:
        if self._size + num_more > self._max_bytes:
            raise EventTooLargeError(f"an event of over {self._max_bytes} bytes")
