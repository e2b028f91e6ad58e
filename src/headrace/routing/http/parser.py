"""Cuts the answers of one connection out of its bytes. Knows no socket, no time and no reader.

What frames a body is bounded as a head is: a trailer or a chunk's extension may be as endless.
"""

import httptools

from headrace.routing.http.errors import MalformedError, UnansweredError, UnreachableError

MAX_HEAD_BYTES = 64 << 10  # and what one read brings beyond
MAX_HEADERS = 256
_NO_HTTP = "its answer is no HTTP that we take"
_BROKEN_OFF = "its answer broke off or makes no sense"
_CONTINUE, _SWITCHING, _OK = 100, 101, 200


class AnswerParser:
    """`begin` before each request; then `status` is 0 until the head is whole."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.begin()
        self.is_over = True

    def begin(self) -> None:
        """Expect an answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_over = False
        self.may_be_kept = False
        self._has_begun = False
        self._num_headers = 0
        self._num_framing = 0  # bytes since the last of a head or a body
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Read what came. What came before a fault in it can be taken all the same."""
        self._has_begun = True
        self._num_framing += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.may_be_kept = False
            if not self.is_over:  # else the fault is in what nobody asked for
                raise MalformedError(_BROKEN_OFF if self.status else _NO_HTTP) from None
        if self._num_framing > MAX_HEAD_BYTES and not self.is_over:
            raise MalformedError(_BROKEN_OFF if self.status else _NO_HTTP)

    def take(self) -> bytes:
        """The bytes of the body since the last time."""
        pieces = self._pieces
        if not pieces:
            return b""
        self._pieces = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, *, is_reset: bool) -> None:
        """No more comes: that ends a body whose head told no length, and breaks every other."""
        if not self._has_begun:
            raise UnansweredError("the connection broke")
        if not self.status:
            raise UnreachableError("the connection broke")
        if is_reset or not {"content-length", "transfer-encoding"}.isdisjoint(self.headers):
            raise MalformedError(_BROKEN_OFF)
        self.is_over = True

    # What httptools calls

    def on_message_begin(self) -> None:
        if self.is_over:
            raise MalformedError("it answers what was not asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer, which tells us nothing
        self._num_headers += 1
        if self._num_headers > MAX_HEADERS:
            raise MalformedError(_NO_HTTP)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == _SWITCHING or status < _CONTINUE:
            raise MalformedError(_NO_HTTP)
        if status < _OK:
            return  # informational: the answer itself is still to come
        if self.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise MalformedError(_NO_HTTP)
        self.status = status
        self._num_framing = 0

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._num_framing = 0

    def on_message_complete(self) -> None:
        if self.status:
            self.is_over = True
            # Afterwards the parser knows no more of this message.
            self.may_be_kept = self._parser.should_keep_alive()
        else:
            self.headers = {}
            self._num_headers = 0
