"""HTTP to one upstream: what is no success is raised as an error that names it. Knows no JSON.

Follows no redirect: the key is for the host that it was given for.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from yarl import URL

from headrace.endpoints import UpstreamConfig
from headrace.errors import UnavailableError
from headrace.routing.http.errors import HttpError
from headrace.routing.upstream.body import Body
from headrace.routing.upstream.errors import UpstreamBrokenError, UpstreamBusyError
from headrace.routing.upstream.refusals import Refusals
from headrace.routing.upstream.session import open_session
from headrace.routing.upstream.times import InTime, Times
from headrace.routing.upstream.transport import translated

MAX_ANSWER_BYTES = 16 << 20  # of an answer that is not streamed
MAX_REFUSAL_BYTES = 64 << 10
_REFUSAL_TIMEOUT = 2.0  # seconds for all of it
_OK = 200
_NO_HEADERS: Mapping[str, str] = {}

T = TypeVar("T")


class Connection:
    """Make it inside an event loop, and close it there."""

    def __init__(self, config: UpstreamConfig, api_key: str | None, refusals: Refusals) -> None:
        self._refusals = refusals
        self._session = open_session(config, api_key)
        self._max_open = config.max_connections
        self._num_open = 0
        self._bodies: set[Body] = set()

    async def close(self) -> None:
        """Abort what is being read, then close what is kept."""
        for body in list(self._bodies):
            body.abort()
        await self._session.close()

    async def send(
        self,
        method: str,
        url: URL,
        times: Times,
        *,
        data: bytes = b"",
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> Body:
        """The body of a success, to be closed by the caller, who also limits the time of this."""
        body = await self._opened(method, url, times, data, headers)
        if body.status != _OK:
            said = await self.said(body)
            raise self._refusals.of_answer(body.status, body.headers, said, time.time())
        if body.is_encoded:
            body.close()
            complaint = "its answer is compressed, which we did not ask for"
            raise UpstreamBrokenError(self._refusals.sentence(complaint))
        return body

    async def ask(
        self, method: str, url: URL, read: Callable[[bytes], T], *, limit: float, data: bytes = b""
    ) -> T:
        """What `read` makes of a whole answer, all of which may take `limit` seconds."""
        times = Times.starting(time.monotonic(), None, first_byte=limit, idle=limit)
        async with InTime(times, self._refusals):
            body = await self.send(method, url, times, data=data)
            try:
                answer = await body.read_all(MAX_ANSWER_BYTES)
            finally:
                body.close()
        try:
            return read(answer)
        except (ValueError, RecursionError):
            complaint = f"its answer to {method} {url.path} makes no sense"
            raise UpstreamBrokenError(self._refusals.sentence(complaint)) from None

    async def said(self, body: Body) -> bytes:
        """The body of a refusal; nothing of one that has no end, since its status says enough."""
        try:
            async with asyncio.timeout(_REFUSAL_TIMEOUT):
                return await body.read_all(MAX_REFUSAL_BYTES)
        except (TimeoutError, UnavailableError):
            return b""
        finally:
            body.close()

    async def _opened(
        self, method: str, url: URL, times: Times, data: bytes, headers: Mapping[str, str]
    ) -> Body:
        """An answer of whatever status, in one of the places for requests."""
        if self._num_open >= self._max_open:
            complaint = f"it has {self._num_open} requests of ours, as many as it may"
            raise UpstreamBusyError(self._refusals.sentence(complaint))
        self._num_open += 1
        try:
            answer = await self._session.request(method, url, data, headers)
        except BaseException as error:
            self._num_open -= 1
            if isinstance(error, HttpError):
                raise translated(error, self._refusals) from None
            raise
        body = Body(answer, times, self._refusals, on_end=self._release)
        self._bodies.add(body)
        return body

    def _release(self, body: Body) -> None:
        self._bodies.discard(body)
        self._num_open -= 1
