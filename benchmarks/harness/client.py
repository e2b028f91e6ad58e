"""A streaming client for OpenAI-compatible servers that costs a few microseconds a token.

Output is stamped once, as its bytes arrive; only the fields that are counted are read.
"""

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from harness.connection import Connection, OnBody, OnHeader, StaleConnectionError
from harness.load import Sample

STATUS_OK = 200
STATUS_NOT_YET = 503
VERSION_HEADER = b"x-headrace-version"


class ServerError(Exception):
    """The server answered, but not with what was asked for; `is_final` when waiting is no help."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class HttpClient:
    """Speaks with one server over pooled connections, as many as there are exchanges at once."""

    def __init__(self, url: str, *, timeout: float = 600.0) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._timeout = timeout
        self._idle: list[Connection] = []

    async def exchange(
        self,
        method: str,
        path: str,
        on_body: OnBody,
        body: dict[str, Any] | None = None,
        on_header: OnHeader | None = None,
    ) -> int:
        """Send one request, hand its answer's body over as it comes, return the status."""
        request = self._request(method, path, body)
        async with asyncio.timeout(self._timeout):
            while True:
                connection = await self._connection()
                try:
                    status = await connection.exchange(request, on_body, on_header)
                except StaleConnectionError:
                    continue
                except BaseException:
                    connection.close()
                    raise
                if connection.is_open:
                    self._idle.append(connection)
                return status

    async def get(self, path: str) -> tuple[int, bytes]:
        """One small answer, whole."""
        parts: list[bytes] = []
        status = await self.exchange("GET", path, parts.append)
        return status, b"".join(parts)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, *self._address)
        return connection

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        host, port = self._address
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content


class CompletionClient:
    """Asks one served model for greedy completions of an exact length."""

    def __init__(self, http: HttpClient, model: str, fields: dict[str, Any] | None = None) -> None:
        self._http = http
        self._model = model
        self._fields = fields or {}

    async def complete(self, prompt: list[int] | str, max_tokens: int) -> Sample:
        """Stream one answer; whatever goes wrong becomes the sample's error."""
        stream = CompletionStream()
        body = self._body(prompt, max_tokens)
        sent = time.monotonic()
        try:
            status = await self._http.exchange(
                "POST", "/v1/completions", stream.feed, body, stream.header
            )
            stream.check(status)
        except (OSError, ServerError, TimeoutError, httptools.HttpParserError) as error:
            is_final = isinstance(error, ServerError) and error.is_final
            reason = f"{type(error).__name__}: {error}"
            return Sample(
                sent, stream.arrivals, error=reason, is_final=is_final, version=stream.version
            )
        usage = stream.usage
        return Sample(
            sent,
            stream.arrivals,
            usage.prompt_tokens,
            usage.completion_tokens,
            version=stream.version,
            text="".join(stream.texts),
        )

    def _body(self, prompt: list[int] | str, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
        }


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class CompletionStream:
    """Reads one answer: which version gave it, when text came, what usage the server claims."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.arrivals: list[float] = []
        self.texts: list[str] = []
        self.usage = _Usage()
        self._rest = b""
        self._other = b""
        self._error: object = None
        self._is_done = False

    def header(self, name: bytes, value: bytes) -> None:
        if name.lower() == VERSION_HEADER:
            self.version = value.decode()

    def feed(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
            else:
                self._other += line

    def check(self, status: int) -> None:
        """Raise ServerError unless this was a whole stream that carried its usage."""
        if status != STATUS_OK:
            detail = (self._other + self._rest)[:300].decode(errors="replace")
            raise ServerError(f"HTTP {status}: {detail}", is_final=status != STATUS_NOT_YET)
        if self._error is not None:
            raise ServerError(f"the stream carried an error: {self._error}")
        if not self._is_done:
            raise ServerError("the stream ended without [DONE]")
        if not self.usage.completion_tokens:
            raise ServerError("the stream carried no usage")

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._is_done = True
            return
        event = _decode_event(payload)
        self._error = self._error or event.error
        self.usage = event.usage or self.usage
        texts = [choice.text for choice in event.choices if choice.text]
        if texts:
            self.arrivals.append(now)
            self.texts += texts
