"""A server that answers by a script, over plain sockets, so that every byte is the test's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
SILENT = b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class ScriptedServer:
    """Answers every request on a connection by a script, and counts connections."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.requests.append(body)
                await self.answer(body, writer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[ScriptedServer]:
    script = ScriptedServer(answer)
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    script.url = f"http://{host}:{port}"
    try:
        yield script
    finally:
        server.close()
        await server.wait_closed()


def streaming(*events: bytes) -> Answer:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"".join(chunk(event) for event in events) + chunk(b""))

    return answer
