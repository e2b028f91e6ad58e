"""Frames over one ZeroMQ pair, driven by an event loop. Knows what a frame is made of, not why.

Nothing is dropped and nothing blocks: what ZeroMQ does not take at once waits in an outbox that is
bounded in bytes. Past the bound, or after bytes that are no frame, the channel is broken and says
so once. Any thread may send, without waking the loop: see docs/decisions.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import zmq

MAX_OUTBOX_BYTES = 512 << 20
MAX_QUEUED_FRAMES = 256  # inside ZeroMQ, each way
FRAMES_A_TURN = 64  # then the event loop's other work gets a turn
LINGER = 1.0  # seconds that frames already sent get to leave a closed channel

# As plain integers: operations on the enumerations cost as much as a system call.
NOBLOCK, EVENTS = int(zmq.NOBLOCK), int(zmq.EVENTS)
POLLIN, POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)

Received = TypeVar("Received")


class Channel(Generic[Received]):
    """One end. `receive` gets every frame in order; `broken` gets the reason, at most once.

    Both are called on the loop that the channel was made on, and only `send` may be called
    elsewhere.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        decoder: msgspec.msgpack.Decoder[Received],
        *,
        receive: Callable[[Received], None],
        broken: Callable[[str], None],
        max_outbox_bytes: int = MAX_OUTBOX_BYTES,
    ) -> None:
        self._socket = socket
        self._decoder = decoder
        self._receive = receive
        self._broken = broken
        self._max_outbox_bytes = max_outbox_bytes
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._is_open = True
        self._has_turn = False
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        # A ZeroMQ socket may pass from thread to thread if no two use it at once.
        self._lock = threading.Lock()
        # As cheap as zmq.asyncio, and `send` needs no task. But the descriptor only tells of
        # changes: after every call on the socket someone has to look whether more can be done.
        self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self.pump)
        self._take_a_turn_soon()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def outbox_bytes(self) -> int:
        """Bytes that the other side has not made room for."""
        return self._outbox_bytes

    def send(self, data: bytes) -> None:
        """Queue one encoded frame. A closed channel takes it to nowhere, as a dead peer would."""
        with self._lock:
            if not self._is_open:
                return
            if self._outbox:
                self._hold(data)
            else:
                if not self._try_to_send(data):
                    self._hold(data)
                self._look_again()
            is_over = self._outbox_bytes > self._max_outbox_bytes
        if is_over:
            self._break_on_loop(f"the other side left {self._outbox_bytes} bytes unread")

    def pump(self) -> None:
        """Hand over what has arrived and send what waits."""
        is_emptied = False
        try:
            is_emptied = self._receive_some()
        finally:
            with self._lock:
                if self._is_open and (self._outbox or not is_emptied):
                    self._flush()
                    self._look_again()

    def close(self) -> None:
        """Close the socket; what ZeroMQ holds still leaves within `LINGER`."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._loop.remove_reader(int(self._socket.getsockopt(zmq.FD)))
            self._outbox.clear()
            self._socket.close(linger=int(LINGER * 1000))

    def _receive_some(self) -> bool:
        """Whether ZeroMQ holds nothing more, so that the descriptor will tell of the next."""
        for _ in range(FRAMES_A_TURN):
            if (data := self._next()) is None:
                return True
            try:
                frame = self._decoder.decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._break(f"a malformed frame of {len(data)} bytes: {error}")
                return True
            self._receive(frame)
        return False

    def _next(self) -> bytes | None:
        with self._lock:
            if self._is_open and self._events & POLLIN:
                return self._socket.recv(NOBLOCK)
            return None

    def _break_on_loop(self, reason: str) -> None:
        if threading.get_ident() == self._thread_id:
            self._break(reason)
        else:
            self._loop.call_soon_threadsafe(self._break, reason)

    def _break(self, reason: str) -> None:
        if self._is_open:
            self.close()
            self._broken(reason)

    # The rest is called with the lock held.

    def _hold(self, data: bytes) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)

    def _flush(self) -> None:
        while self._outbox and self._try_to_send(self._outbox[0]):
            self._outbox_bytes -= len(self._outbox.popleft())

    def _try_to_send(self, data: bytes) -> bool:
        try:
            self._socket.send(data, NOBLOCK)
        except zmq.Again:
            return False
        return True

    @property
    def _events(self) -> int:
        return int(self._socket.getsockopt(EVENTS))

    def _look_again(self) -> None:
        wanted = POLLIN | POLLOUT if self._outbox else POLLIN
        if self._events & wanted:
            self._take_a_turn_soon()

    def _take_a_turn_soon(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon_threadsafe(self._take_a_turn)

    def _take_a_turn(self) -> None:
        self._has_turn = False
        self.pump()


def tuned(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """The options that both ends share; to be set before a socket is bound or connected."""
    socket.set_hwm(MAX_QUEUED_FRAMES)
    socket.linger = 0
    return socket
