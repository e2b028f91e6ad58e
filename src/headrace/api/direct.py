"""One request's place on its connection: does in a call what uvicorn's `receive` and `send` do."""

from collections.abc import Callable, Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_OK = 200


class Direct:
    """Does in one call what the cycle's own `receive` and `send` do."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._when_lost: Callable[[], None] | None = None

    @property
    def is_answered(self) -> bool:
        return self._cycle.response_complete

    @property
    def has_begun(self) -> bool:
        """Whether its answer has, and has not ended."""
        return self._cycle.response_started and not self._cycle.response_complete

    def take_body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        self._flow.resume_reading()  # a body of some size has paused it
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        self._when_lost = callback
        if callback is not None and self._cycle.disconnected:
            callback()

    def lose(self) -> None:
        cycle = self._cycle
        cycle.disconnected = not cycle.response_complete
        cycle.message_event.set()
        if cycle.disconnected and self._when_lost is not None:
            self._when_lost()

    def answer(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        head = self._begin(headers, is_chunked=False)
        self._put(b"%b\r\n%b" % (head, body))
        self._complete()

    def start(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        head = self._begin(headers, is_chunked=True)
        return self._put(
            b"%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (head, len(body), body)
        )

    def write(self, body: bytes) -> bool:
        assert self._cycle.chunked_encoding, "the head of a stream is out and names no length"
        return self._put(b"%x\r\n%b\r\n" % (len(body), body))

    def end(self, body: bytes) -> None:
        assert self._cycle.chunked_encoding, "as above"
        last = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        self._put(last + b"0\r\n\r\n")
        self._complete()

    async def drain(self) -> None:
        await self._flow.drain()

    def _begin(self, headers: Iterable[tuple[bytes, bytes]], *, is_chunked: bool) -> bytes:
        """The lines of a head, of an answer that has begun with it."""
        cycle = self._cycle
        assert not cycle.response_started
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\r") == head.count(b"\n") == len(lines):
            raise ValueError("a header of an answer has a line break in it")
        cycle.response_started, cycle.chunked_encoding = True, is_chunked
        cycle.waiting_for_100_continue = False
        return STATUS_LINE[_OK] + head

    def _put(self, framed: bytes) -> bool:
        if not self._cycle.disconnected:
            self._write(framed)
        return not self._flow.write_paused

    def _complete(self) -> None:
        """As the cycle does it."""
        cycle = self._cycle
        if cycle.disconnected:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
