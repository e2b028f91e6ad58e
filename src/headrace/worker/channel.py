"""Frames over one Unix stream socket, driven by an event loop. Knows how a frame is cut, not why.

Each frame goes behind its length, four bytes. Nothing is dropped and nothing blocks: what the
socket does not take at once waits in an outbox that is bounded in bytes. Past the bound, or after
bytes that are no frame, the channel is broken and says so once. Any thread may send: see
docs/decisions.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from socket import MSG_DONTWAIT, socket
from typing import Generic, TypeVar

import msgspec

MAX_OUTBOX_BYTES = 512 << 20
MAX_FRAME_BYTES = 512 << 20
LENGTH_BYTES = 4
BYTES_A_TURN = 64 << 10  # then the event loop's other work gets a turn

Received = TypeVar("Received")


class Channel(Generic[Received]):
    """One end. `receive` gets every frame in order; `broken` gets the reason, at most once.

    `hung_up` is called when the other side has closed its end, after its last frame. All are called
    on the loop that the channel was made on, and only `send` may be called elsewhere.
    """

    def __init__(
        self,
        sock: socket,
        decoder: msgspec.msgpack.Decoder[Received],
        *,
        receive: Callable[[Received], None],
        broken: Callable[[str], None],
        hung_up: Callable[[], None] = lambda: None,
        max_outbox_bytes: int = MAX_OUTBOX_BYTES,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = decoder
        self._receive = receive
        self._broken = broken
        self._hung_up = hung_up
        self._max_outbox_bytes = max_outbox_bytes
        self._arrived = bytearray()  # of a frame that is not whole
        self._awaited = LENGTH_BYTES  # bytes until it is
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._is_open = True
        self._is_heard = True  # until the other side has hung up
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()  # over the outbox and the socket's sending side
        self._loop.add_reader(sock, self._read)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def outbox_bytes(self) -> int:
        """Bytes that the other side has not made room for."""
        return self._outbox_bytes

    def send(self, data: bytes) -> None:
        """Queue one encoded frame. A closed channel takes it to nowhere, as a dead peer does."""
        framed = len(data).to_bytes(LENGTH_BYTES, "little") + data
        with self._lock:
            if not self._is_open:
                return
            if self._outbox:
                self._hold(memoryview(framed))
            elif (num_sent := self._try_to_send(framed)) < len(framed):
                self._hold(memoryview(framed)[num_sent:])
                self._on_loop(self._send_when_writable)
            is_over = self._outbox_bytes > self._max_outbox_bytes
        if is_over:
            self._on_loop(self._break, f"the other side left {self._outbox_bytes} bytes unread")

    def receive_rest(self) -> None:
        """Hand over whatever has arrived, from a process that is gone."""
        while self._is_open and self._is_heard and self._read():
            pass

    def send_rest(self, timeout: float) -> None:
        """Send what waits, as long as the other side takes it within so many seconds; blocks."""
        with self._lock:
            if not self._is_open:
                return
            waiting = b"".join(self._outbox)
            self._outbox.clear()
            self._outbox_bytes = 0
            self._socket.settimeout(timeout)
            with suppress(OSError):  # it does not read, or has gone
                self._socket.sendall(waiting)
            self._socket.setblocking(False)

    def close(self) -> None:
        """Close the socket. What it holds still arrives, what waits in the outbox does not."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._outbox.clear()
            self._socket.close()

    def _read(self) -> bool:
        """Take a turn's worth of bytes; whether there were any."""
        try:
            data = self._socket.recv(BYTES_A_TURN)
        except BlockingIOError:
            return False
        except ConnectionError:  # gone with bytes of ours unread
            data = b""
        if data:
            self._take(data)
            return True
        self._is_heard = False
        self._loop.remove_reader(self._socket)
        self._hung_up()
        return False

    def _take(self, data: bytes) -> None:
        """Hand over the frames that are whole and keep the rest."""
        if self._arrived:
            self._arrived += data
            if len(self._arrived) < self._awaited:
                return  # a long frame is looked at once, not with every piece
            data = bytes(self._arrived)
        at, size, self._awaited = 0, len(data), LENGTH_BYTES
        while self._is_open and size - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            end = start + int.from_bytes(data[at:start], "little")
            if end - start > MAX_FRAME_BYTES:
                self._break(f"a malformed frame: it claims {end - start} bytes")
            if end > size:
                self._awaited = end - at
                break
            at = end
            self._hand_over(data[start:end])
        self._arrived = bytearray(data[at:])

    def _hand_over(self, data: bytes) -> None:
        try:
            frame = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._break(f"a malformed frame of {len(data)} bytes: {error}")
            return
        try:
            self._receive(frame)
        except Exception as error:  # noqa: BLE001 - told as any callback's, and others wait behind it
            name = type(frame).__name__
            self._loop.call_exception_handler(
                {"message": f"a frame could not be taken: {name}", "exception": error}
            )

    def _break(self, reason: str) -> None:
        if self._is_open:
            self.close()
            self._broken(reason)

    def _on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        if threading.get_ident() == self._thread_id:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    def _send_when_writable(self) -> None:
        if self._is_open:
            self._loop.add_writer(self._socket, self._send_more)

    def _send_more(self) -> None:
        with self._lock:
            while self._outbox:
                data = self._outbox[0]
                num_sent = self._try_to_send(data)
                self._outbox_bytes -= num_sent
                if num_sent < len(data):
                    self._outbox[0] = data[num_sent:]
                    return
                self._outbox.popleft()
            self._loop.remove_writer(self._socket)

    # The rest is called with the lock held.

    def _hold(self, data: memoryview) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)

    def _try_to_send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)
