"""A server on loopback that reads requests as it should and answers them as a test says."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = "data: [DONE]\n\n"


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The connection that a request came on."""

    def __init__(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.asked = asked
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes | str) -> None:
        self._writer.write(data if isinstance(data, bytes) else data.encode())
        await self._writer.drain()

    async def send_chunk(self, data: bytes | str) -> None:
        data = data if isinstance(data, bytes) else data.encode()
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(
        self, body: bytes | str, status: str = "200 OK", kind: str = "application/json", **more: str
    ) -> None:
        body = body if isinstance(body, bytes) else body.encode()
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        await self.send("\r\n".join(lines).encode() + body)

    async def stream(self, *events: str) -> None:
        await self.send(STREAM_HEAD)
        for event in events:
            await self.send_chunk(event)
        await self.send_chunk("")

    async def gone(self) -> None:
        """Return once the other side has closed, or reset, the connection."""
        try:
            while await self._reader.read(1 << 16):
                pass
        except ConnectionError:
            pass

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


class MisbehavingServer:
    """Answers by `script`; keeps the connection open unless the script closes it."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.tls = tls
        self.requests: list[Asked] = []
        self.num_connections = 0
        self.someone_left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port again after a stop."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, ssl=self.tls
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            while not writer.is_closing() and (asked := await _read_request(reader)):
                self.requests.append(asked)
                await self.script(Peer(asked, reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.someone_left.set()
            self._tasks.discard(task)
            writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def text(words: str, index: int = 0, finish_reason: str | None = None, **fields: Any) -> str:
    """An event of a completion."""
    choice = {"index": index, "text": words, "finish_reason": finish_reason, **fields}
    return event(choices=[choice])


def usage(prompt_tokens: int = 3, completion_tokens: int = 2, cached: int | None = None) -> str:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": details,
    }
    return event(choices=[], usage=counts)


WHOLE = (text("Hello"), text(" you", finish_reason="stop"), usage(), DONE)
