"""One connection to a server: sends a request, then feeds its answer. Knows no pool and no time."""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

from headrace.routing.http.answer import Answer
from headrace.routing.http.errors import HttpError, UnansweredError
from headrace.routing.http.parser import AnswerParser

UNSENT_TIMEOUT = 30_000  # milliseconds until a peer that takes no bytes counts as gone
PIECE_BYTES = 256 << 10  # of a body that is sent as the peer takes it


class HttpConnection(asyncio.Protocol):
    """Has one request at a time. `on_free` and `on_lost` are told when it has none, or is gone."""

    def __init__(
        self,
        on_free: Callable[["HttpConnection"], None],
        on_lost: Callable[["HttpConnection"], None],
    ) -> None:
        self.idle_since = 0.0  # for whoever keeps it
        self._on_free = on_free
        self._on_lost = on_lost
        self._parser = AnswerParser()
        self._answer: Answer | None = None
        self._unsent = memoryview(b"")
        self._may_write = True
        self._is_paused = False

    @property
    def is_usable(self) -> bool:
        return self._answer is None and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that is still unread: not even its end, nor a late complaint."""
        return not self._poll.poll(0)

    async def ask(self, head: bytes, body: bytes) -> Answer:
        """The head of the answer, at the latest when the connection ends."""
        if not self.is_usable:
            raise UnansweredError("the connection broke")
        self._parser.begin()
        answer = self._answer = Answer(self)
        self._send(head, body)
        try:
            await answer.head()
        except BaseException:
            answer.abort()
            raise
        return answer

    def abort(self) -> None:
        self._transport.abort()  # closing would first send what is unsent

    def pause(self) -> None:
        """Read no more for now."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_TIMEOUT)
        self._poll = select.poll()
        self._poll.register(opened.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        answer, parser = self._answer, self._parser
        if answer is None:  # nothing was asked
            self.abort()
            return
        fault: HttpError | None = None
        try:
            parser.feed(data)
        except HttpError as error:
            fault = error
        self._pass_on(answer, parser)
        if fault is not None:
            self._fail(fault)

    def eof_received(self) -> None:
        self._end(is_reset=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(is_reset=exc is not None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._send_more()

    # Parts

    def _send(self, head: bytes, body: bytes) -> None:
        if len(body) <= PIECE_BYTES:
            self._transport.write(head + body)
            return
        self._transport.write(head)
        self._unsent = memoryview(body)
        self._send_more()

    def _send_more(self) -> None:
        while self._unsent and self._may_write:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)

    def _pass_on(self, answer: Answer, parser: AnswerParser) -> None:
        """Hand on what a read brought; a last piece finds the answer over already."""
        if parser.status and not answer.status:
            answer.begin(parser.status, parser.headers)
        if parser.is_over:
            answer.is_over = True
            self._free()
        if piece := parser.take():
            answer.put(piece)
        if parser.is_over:
            answer.end()

    def _free(self) -> None:
        self._answer = None
        self.resume()
        is_sent = not self._unsent and not self._transport.get_write_buffer_size()
        if is_sent and self._parser.may_be_kept and not self._transport.is_closing():
            self._on_free(self)
        else:
            self.abort()

    def _end(self, *, is_reset: bool) -> None:
        """No more comes."""
        if (answer := self._answer) is not None:
            try:
                self._parser.end(is_reset=is_reset)
            except HttpError as error:
                self._fail(error)
            else:
                self._pass_on(answer, self._parser)
        self.abort()

    def _fail(self, error: HttpError) -> None:
        answer, self._answer = self._answer, None
        self.abort()
        if answer is not None:
            answer.fail(error)
