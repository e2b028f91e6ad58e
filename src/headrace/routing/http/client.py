"""Requests to one origin, with the headers that all of them carry. Knows no JSON and no upstream.

Follows no redirect and no environment, keeps no cookie, undoes no compression.
"""

import ssl
from collections.abc import Mapping

from yarl import URL

from headrace.routing.http.answer import Answer
from headrace.routing.http.errors import UnansweredError
from headrace.routing.http.pool import Pool

_NO_HEADERS: Mapping[str, str] = {}


class HttpClient:
    """Make it inside an event loop, and close it there. `tls` is for an origin of https."""

    def __init__(
        self,
        origin: URL,
        tls: ssl.SSLContext | None,
        *,
        headers: Mapping[str, str],
        connect_timeout: float,
    ) -> None:
        assert origin.raw_host is not None
        assert origin.port is not None
        self._pool = Pool(origin.raw_host, origin.port, tls, connect_timeout=connect_timeout)
        self._standing = _lines({"Host": origin.host_port_subcomponent or "", **headers})

    async def request(
        self, method: str, url: URL, data: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS
    ) -> Answer:
        """The head of the answer; its body is to be read, or aborted. `url` is of our origin.

        A connection that was kept for too long is replaced, once: it closed before any answer, so
        the server has most likely not seen the request, see RFC 9112, section 9.3.1, and generating
        twice changes nothing.
        """
        head = self._head(method, url, data, headers)
        kept = self._pool.take()
        if kept is not None:
            try:
                return await kept.ask(head, data)
            except UnansweredError:
                pass
        fresh = await self._pool.connect()
        return await fresh.ask(head, data)

    async def close(self) -> None:
        """Abort what is being asked, then close what is kept."""
        await self._pool.close()

    def _head(self, method: str, url: URL, data: bytes, headers: Mapping[str, str]) -> bytes:
        first = f"{method} {url.raw_path_qs} HTTP/1.1\r\n".encode()
        length = b"Content-Length: %d\r\n" % len(data) if data or method != "GET" else b""
        return b"".join((first, self._standing, _lines(headers), length, b"\r\n"))


def _lines(headers: Mapping[str, str]) -> bytes:
    for value in headers.values():
        if not (value.isascii() and value.isprintable()):
            raise ValueError("a header's value holds what no header can")  # not the value: a key
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
